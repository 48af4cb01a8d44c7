"""Settings of all tests."""

import gc
import signal

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
    """Leave the ten thousand collected tests out of every garbage collection that follows."""
    gc.collect()
    gc.freeze()
