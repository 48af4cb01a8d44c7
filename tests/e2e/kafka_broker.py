"""A Kafka broker of one node on loopback, from its Maven artifacts, which may be stopped or killed.

The artifacts are downloaded once into the user's cache folder.
"""

from __future__ import annotations

import signal
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from e2e.programs import CACHE, MAVEN, PATIENCE, downloaded, eventually, free_ports, program, recent

VERSION = "4.1.0"
LOG4J = "2.25.1"
USER, PASSWORD = "worker", "opens nothing"  # of the listener with SASL

POM = f"""
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rag-eval-otel</groupId><artifactId>broker</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j2-impl</artifactId><version>{LOG4J}</version>
    </dependency>
  </dependencies>
</project>
"""

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},\
CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\
CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
log.dirs={folder}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def fresh(name: str) -> str:
    """Return a name for a topic or group that no earlier run of a test has used."""
    return f"{name}-{uuid4().hex[:8]}"


def jars() -> Path:
    """Return the folder with the broker's artifacts; skip the test if they cannot be had."""
    recent("java", 17)
    with TemporaryDirectory() as folder:
        Path(folder, "pom.xml").write_text(POM)
        return downloaded(CACHE / f"kafka-{VERSION}-{LOG4J}", MAVEN, Path(folder)) / "libs"


@dataclass
class Broker:
    """A broker that keeps its ports and its data when it is started again."""

    folder: Path
    plain: int
    sasl: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The address of the listener without authentication."""
        return f"127.0.0.1:{self.plain}"

    def client(self, **options: str) -> dict[str, Any]:
        """Return the configuration of a client, for this broker."""
        return {"bootstrap.servers": self.address, "log_level": 0, **options}

    def start(self) -> None:
        with (self.folder / "broker.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    [*self._java(), "kafka.Kafka", str(self.folder / "server.properties")],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
        eventually(self._answers, f"the broker answers; its log is in {self.folder}")

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the broker by a signal, and wait for its end."""
        self.processes[-1].send_signal(number)
        self.processes[-1].wait(PATIENCE)

    def format(self) -> None:
        """Prepare the folder of the broker's data."""
        uuid = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        config = str(self.folder / "server.properties")
        command = [*self._java(), "kafka.tools.StorageTool", "format", "-t", uuid, "-c", config]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    def _java(self) -> list[str]:
        memory = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        return [program("java"), *memory, "-cp", f"{jars()}/*"]

    def _answers(self) -> bool:
        assert self.processes[-1].poll() is None, (self.folder / "broker.log").read_text()[-3000:]
        try:
            return bool(self.admin().list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def admin(self) -> Any:
        """Return a client for topics and groups."""
        return AdminClient(self.client())

    def create(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, and wait until it can be used."""
        admin = self.admin()
        made = admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))])
        made[topic].result(PATIENCE)
        eventually(lambda: topic in admin.list_topics(timeout=10).topics, f"{topic} is there")
        return topic

    @contextmanager
    def consumer(self, topic: str, group: str) -> Iterator[tuple[Any, list[TopicPartition]]]:
        """Yield a client of the group, and the partitions of the topic."""
        client = Consumer(self.client(**{"group.id": group}))
        try:
            parts = client.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
            yield client, [TopicPartition(topic, part) for part in parts]
        finally:
            client.close()

    def committed(self, topic: str, group: str) -> Mapping[int, int]:
        """Return the committed offset of each partition; only partitions that have one."""
        with self.consumer(topic, group) as (client, parts):
            found = client.committed(parts, timeout=PATIENCE)
        return {one.partition: one.offset for one in found if one.offset >= 0}

    def shares(self, group: str) -> Mapping[str, int]:
        """Return the number of partitions that each member of a stable group reads."""
        admin = self.admin()
        try:
            found = admin.describe_consumer_groups([group])[group].result(PATIENCE)
        except KafkaException:  # the broker has just started, or knows no such group yet
            return {}
        if found.state != ConsumerGroupState.STABLE:
            return {}
        sizes = {one.member_id: len(one.assignment.topic_partitions) for one in found.members}
        return {member: size for member, size in sizes.items() if size}

    def wait_for_members(self, group: str, members: int) -> None:
        """Wait until this number of members of a stable group have partitions."""
        eventually(lambda: len(self.shares(group)) == members, f"{members} members of {group} read")

    def ends(self, topic: str) -> Mapping[int, int]:
        """Return the offset after the last message of each partition."""
        with self.consumer(topic, "ends") as (client, parts):
            return {p.partition: client.get_watermark_offsets(p, PATIENCE)[1] for p in parts}

    def is_consumed(self, topic: str, group: str) -> bool:
        """Return True if the group has committed the end of each partition with messages."""
        try:
            committed, ends = self.committed(topic, group), self.ends(topic)
        except KafkaException:  # the broker has just started
            return False
        return all(committed.get(part, 0) >= end for part, end in ends.items())


@contextmanager
def serving(folder: Path) -> Iterator[Broker]:
    """Run a broker during the block; skip the test if Java or its artifacts cannot be had."""
    jars()
    folder.mkdir(exist_ok=True)
    plain, sasl, control = free_ports(3)
    ports = {"plain": plain, "sasl": sasl, "control": control}
    text = PROPERTIES.format(**ports, user=USER, password=PASSWORD, folder=folder / "data")
    (folder / "server.properties").write_text(text)
    broker = Broker(folder, plain, sasl)
    broker.format()
    try:
        broker.start()
        yield broker
    finally:
        for process in broker.processes:
            process.kill()
            process.wait()
