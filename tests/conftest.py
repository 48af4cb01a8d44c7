"""Settings of all tests."""

import gc
import random
import signal
import sys

from hypothesis import settings

# No deadline: how busy a machine is proves nothing. More examples: --hypothesis-profile=thorough.
settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("quick")

# What a shell starts in the background ignores interrupts, and so do its children: the tests of ^C
# would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Prepare what is imported and collected for the run."""
    _give_threads_their_own_random()
    gc.collect()
    gc.freeze()  # leaves ten thousand tests out of every garbage collection that follows


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
