"""The IPUs of this machine: none, unless ``SNNIPU_IPUS`` is the number of IPUs to pretend."""

import os

from snnipu.ipu.model import IpuModelTarget
from snnipu.poptorch._errors import InvalidArgument, check_int

IPU_VERSIONS = {"mk1": 1, "mk2": 2, "bow": 21}


def _num_pretended_ipus() -> int:
    text = os.environ.get("SNNIPU_IPUS", "0")
    if not text.isdecimal():
        raise InvalidArgument(f"SNNIPU_IPUS: expected a number of IPUs, got {text!r}")
    return int(text)


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return True if ``SNNIPU_IPUS`` is at least ``num_ipus``; without that variable the host has no IPUs.

    Args:
        num_ipus: at least 1.

    Raises:
        poptorch.Error: ``SNNIPU_IPUS`` is not a number.
    """
    return check_int(num_ipus, "ipuHardwareIsAvailable: num_ipus", 1) <= _num_pretended_ipus()


def ipuHardwareVersion() -> int:
    """Return the version of the IPU in ``SNNIPU_IPU_MODEL_TARGET``; default 2, a Mk2.

    Raises ``poptorch.Error`` if ``SNNIPU_IPUS`` is not set, as PopTorch does on a machine without IPUs.
    """
    if not _num_pretended_ipus():
        raise InvalidArgument("ipuHardwareVersion: there is no IPU on this machine")
    try:
        return IPU_VERSIONS[IpuModelTarget.default().arch]
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
