"""Products without zeros in layers of any size."""

import contextlib

from snnipu.ops import _break_even


@contextlib.contextmanager
def events_taken():
    """Use events for inputs of mostly zeros in layers of any size, not only in large ones."""
    limits = {"FEWEST_PRODUCTS": 0, "linear_input_limit": lambda *_: 0.7, "convolution_input_limit": lambda *_: 0.7}
    known = {name: getattr(_break_even, name) for name in limits}
    for name, limit in limits.items():
        setattr(_break_even, name, limit)
    try:
        yield
    finally:
        for name, limit in known.items():
            setattr(_break_even, name, limit)
