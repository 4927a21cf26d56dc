"""PopDist on a host: one training job in several processes, which PopDist calls *instances*.

``torchrun --nproc-per-node N -m snnipu run script.py`` replaces ``poprun --num-instances N``. Without a launcher there
is one instance. Each instance has ``POPDIST_NUM_LOCAL_REPLICAS`` replicas (default 1), which run one after another.
``popdist.poptorch.Options`` sets the numbers of replicas and processes. Gradients are summed over the instances.
Weights are not shared: start every instance with the same weights, by ``torch.manual_seed`` or from a file.
"""

import functools
import os
from typing import Any, Callable, Iterable, TypeVar, cast

import torch.distributed as dist

from snnipu.poptorch._errors import InvalidArgument, InvalidType, check_int, not_available
from snnipu.poptorch._instances import connect, instance, launched

_F = TypeVar("_F", bound=Callable[..., Any])

__all__ = [
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "getDeviceId",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
    "synchronize",
]


def _number(variable: str) -> int:
    text = os.environ.get(variable, "1")
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgument(f"{variable} must be a number of at least 1, got {text!r}")
    return int(text)


def isPopdistEnvSet() -> bool:
    """Return True if a launcher started this process."""
    return launched()


def init() -> None:
    """Connect to the other instances by ``torch.distributed``; call it before training."""
    connect()


def getNumInstances() -> int:
    """Return the number of instances."""
    return instance()[1]


def getInstanceIndex() -> int:
    """Return the number of this instance, from 0."""
    return instance()[0]


def getNumLocalReplicas() -> int:
    """Return the replicas of an instance: ``POPDIST_NUM_LOCAL_REPLICAS``, default 1."""
    return _number("POPDIST_NUM_LOCAL_REPLICAS")


def getNumTotalReplicas() -> int:
    """Return the replicas of all instances."""
    return getNumInstances() * getNumLocalReplicas()


def getReplicaIndexOffset() -> int:
    """Return the number of this instance's first replica."""
    return getInstanceIndex() * getNumLocalReplicas()


def getNumIpusPerReplica() -> int:
    """Return the IPUs of a replica: ``POPDIST_NUM_IPUS_PER_REPLICA``, default 1."""
    return _number("POPDIST_NUM_IPUS_PER_REPLICA")


def checkNumIpusPerReplica(ipus_per_replica: int) -> None:
    """Raise ``poptorch.Error`` if a launcher gives replicas another number of IPUs.

    Args:
        ipus_per_replica: the number that the program needs, at least 1.
    """
    check_int(ipus_per_replica, "checkNumIpusPerReplica: ipus_per_replica", 1)
    if isPopdistEnvSet() and ipus_per_replica != getNumIpusPerReplica():
        raise InvalidArgument(
            f"checkNumIpusPerReplica: the launcher gives {getNumIpusPerReplica()} IPUs a replica "
            f"(POPDIST_NUM_IPUS_PER_REPLICA), the program wants {ipus_per_replica}"
        )


def getDeviceId(ipus_per_replica: int = 1) -> int:
    """Raise ``poptorch.Error``: the host has no IPU devices.

    Args:
        ipus_per_replica: no effect.
    """
    raise not_available("popdist.getDeviceId", "a host has no IPU devices.")


def synchronize() -> None:
    """Wait for all instances."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def execute_on_instances(instances: Iterable[int]) -> Callable[[_F], _F]:
    """Return a decorator for a function that runs on some instances; on the others its calls return None.

    Args:
        instances: the numbers of the instances that run it.
    """
    chosen = set(instances)
    if not all(isinstance(number, int) for number in chosen):
        raise InvalidType(f"execute_on_instances: expected numbers of instances, got {sorted(map(repr, chosen))}")

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def on_instances(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if getInstanceIndex() in chosen else None

        return cast(_F, on_instances)

    return decorate
