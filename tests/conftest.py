"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)  # how busy a machine is proves nothing
settings.load_profile("no_deadline")
