"""snnTorch's ``functional``: its losses, accuracies, regularizers and probes, and :mod:`snnipu.functional.quant`."""

from typing import Any, List

import snntorch.functional
from snntorch.functional import *  # noqa: F403

import snnipu.functional._probe
import snnipu.functional.quant  # noqa: F401  (ours in place of snnTorch's, which the line above brings along)


def __getattr__(name: str) -> Any:
    return getattr(snntorch.functional, name)


def __dir__() -> List[str]:
    return sorted({*globals(), *dir(snntorch.functional)})
