"""The package's version: the native library carries the same string and is refused when it differs."""

__version__ = "0.2.0"
