"""Settings of all unit tests."""

from hypothesis import HealthCheck, settings

# No test asserts a duration, so a busy machine must not fail one.
settings.register_profile(
    "unit", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unit")
