"""The version of the package. A native library of another version is not loaded."""

__version__ = "0.2.0"
