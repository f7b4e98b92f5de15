"""Hypothesis draws the same examples on every run, and slow machines do not fail tests."""

from hypothesis import settings

settings.register_profile("fixed", deadline=None, derandomize=True)
settings.load_profile("fixed")
