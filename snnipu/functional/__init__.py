"""snnTorch's ``functional``: losses, accuracies, regularizers and probes.

:mod:`snnipu.functional.quant` and the losses of :mod:`snnipu.functional.loss` replace snnTorch's.
:func:`first_spike_times`, :func:`spike_count_loss` and :func:`wake_silent` are snnipu's own.
"""

from typing import Any, List

import snntorch.functional
from snntorch.functional import *  # noqa: F403

import snnipu.functional._probe
import snnipu.functional.quant  # noqa: F401  (replaces snnTorch's, which the import above binds)
from snnipu.functional.loss import ce_rate_loss, ce_temporal_loss, mse_membrane_loss, mse_temporal_loss, padded_loss
from snnipu.functional.spike_times import spike_count_loss, wake_silent
from snnipu.ops.eventprop import first_spike_times

__all__ = [
    *(name for name in dir(snntorch.functional) if not name.startswith("_")),
    "ce_rate_loss",
    "ce_temporal_loss",
    "first_spike_times",
    "mse_membrane_loss",
    "mse_temporal_loss",
    "padded_loss",
    "spike_count_loss",
    "wake_silent",
]


def __getattr__(name: str) -> Any:
    return getattr(snntorch.functional, name)


def __dir__() -> List[str]:
    return sorted({*globals(), *dir(snntorch.functional)})
