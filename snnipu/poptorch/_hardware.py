"""The IPUs that there are: none on a host, unless ``SNNIPU_IPUS`` says how many it stands for."""

import os

from snnipu.ipu.model import IpuModelTarget
from snnipu.poptorch._errors import InvalidArgument, check_int

IPU_VERSIONS = {"mk1": 1, "mk2": 2, "bow": 21}


def _stood_for() -> int:
    text = os.environ.get("SNNIPU_IPUS", "0")
    if not text.isdecimal():
        raise InvalidArgument(f"SNNIPU_IPUS: expected a number of IPUs, got {text!r}")
    return int(text)


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """False, as the host runtime knows no IPU hardware; True up to the number of IPUs that ``SNNIPU_IPUS`` says.

    Raises ``poptorch.Error`` for a value of the variable that is no number.
    """
    return check_int(num_ipus, "ipuHardwareIsAvailable: num_ipus", 1) <= _stood_for()


def ipuHardwareVersion() -> int:
    """That of ``SNNIPU_IPU_MODEL_TARGET`` (default: 2, a Mk2) where ``SNNIPU_IPUS`` says that there are IPUs.

    Raises ``poptorch.Error`` elsewhere, as PopTorch does on a machine without IPUs.
    """
    if not _stood_for():
        raise InvalidArgument("ipuHardwareVersion: there is no IPU on this machine")
    try:
        return IPU_VERSIONS[IpuModelTarget.default().arch]
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
