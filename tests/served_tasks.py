"""`served` as tasks of Celery. The worker sends the tasks to itself; each makes one turn."""

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from served import turn

DONE = Path(os.environ["SERVED_DONE"])
"""A file to which each task adds a line."""

app = Celery(broker=os.environ["SERVED_BROKER"])
app.conf.worker_hijack_root_logger = False


@app.task
def make() -> None:
    turn()
    with DONE.open("a") as file:
        file.write("done\n")


@worker_ready.connect
def send(**_: Any) -> None:
    for _number in range(int(os.environ["SERVED_TASKS"])):
        make.delay()
