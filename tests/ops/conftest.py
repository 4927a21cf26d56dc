"""Fixtures of the operators' tests."""

from support.interpreter import interpreted  # noqa: F401
