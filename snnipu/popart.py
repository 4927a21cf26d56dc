"""A stand-in for ``popart``, which ``python -m snnipu run`` imports if PopART is not installed.

It has the enumerations that programs pass to ``poptorch.Options``. Any other attribute raises an error that names it.
"""

from enum import IntEnum
from typing import Any

from snnipu.poptorch._errors import not_available

_MEMBERS = {
    "AccumulateOuterFragmentSchedule": "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
    "BatchSerializationBatchSchedule": "Scheduler Isomorphic OverlapOnIo OverlapOnCompute",
    "RecomputationType": "NoRecompute Standard NormOnly Pipeline RecomputeAll",
    "SubgraphCopyingStrategy": "OnEnterAndExit JustInTime",
    "SyntheticDataMode": "Off Zeros RandomNormal RandomUniform",
    "VirtualGraphMode": "Off Manual Auto ExecutionPhases",
}
_ENUMERATIONS = {name: IntEnum(name, members, start=0) for name, members in _MEMBERS.items()}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _ENUMERATIONS:
        return _ENUMERATIONS[name]
    raise not_available(f"popart.{name}", "PopART is not installed.")
