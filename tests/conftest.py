"""Settings of all tests."""

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest
from hypothesis import settings
from opentelemetry import trace

from conformance import checked_exports
from otlp_receiver import OtlpReceiver

# No deadline: how busy a machine is proves nothing. `make check` takes the profile `full`; for more
# examples: --hypothesis-profile=thorough.
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("full", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("quick")

# What a shell starts in the background ignores interrupts, and so do its children: the tests of ^C
# would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one process more than there are cores, because tests wait a quarter of their time."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collections, which take a fifth of the time and find nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Prepare what is imported and collected for the run."""
    _give_threads_their_own_random()
    gc.freeze()  # leaves ten thousand tests out of every garbage collection that follows


@pytest.fixture(scope="session", autouse=True)
def few_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have each HTTP client load one root certificate; to load all takes 23 ms, and most time."""
    end = "-----END CERTIFICATE-----"
    first = Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0]
    file = tmp_path_factory.mktemp("certificates") / "first.pem"
    file.write_text(f"{first}{end}\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="session")
def violations() -> Iterator[list[str]]:
    with checked_exports() as found:
        yield found


@pytest.fixture(autouse=True)
def leaves_nothing_wrong(violations: list[str]) -> Iterator[None]:
    """Fail a test in which a span or an event of ours is not as both conventions say.

    Nor may a test leave a global tracer provider, which exports until the process ends.
    """
    violations.clear()  # of a thread that outlived its test
    before = trace.get_tracer_provider()
    yield
    assert not violations, sorted(set(violations))
    assert trace.get_tracer_provider() is before, "this test has set the global tracer provider"


@pytest.fixture
def backend() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def _give_threads_their_own_random() -> None:
    """Keep OpenTelemetry's threads from the global random generator.

    Hypothesis seeds it, and fails a test in which another thread has used it: the batch processors
    draw from it for ids, exemplars and the time to the next attempt.
    """
    own = random.SystemRandom()
    for name, module in list(sys.modules.items()):
        if name.startswith("opentelemetry."):
            if getattr(module, "random", None) is random:
                module.random = own  # type: ignore[attr-defined]
            if getattr(module, "randrange", None) == random.randrange:
                module.randrange = own.randrange  # type: ignore[attr-defined]
