"""Settings for the whole suite."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine is no failure of the code: examples have no deadline of their own, tests do (pytest-timeout).
settings.register_profile("suite", deadline=None, max_examples=100)
settings.load_profile("suite")
