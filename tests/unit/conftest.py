"""Settings of all unit tests."""

from hypothesis import settings

# No timing is asserted in a test: a busy machine must not fail one.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
