"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A property says what is true, not how long it takes; on a shared machine a pause is no failure.
settings.register_profile("headway", deadline=None)
settings.load_profile("headway")
