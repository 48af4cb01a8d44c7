"""Settings of all tests."""

from hypothesis import settings

# No deadline: how busy a machine is proves nothing. More examples: --hypothesis-profile=thorough.
settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("quick")
