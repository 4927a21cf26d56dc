"""``popdist.poptorch.Options``: PopTorch's options, with the replicas and process that the launcher sets."""

from typing import Any, NoReturn, Optional

from snnipu import poptorch as _poptorch
from snnipu.popdist import (
    checkNumIpusPerReplica,
    getInstanceIndex,
    getNumInstances,
    getNumLocalReplicas,
)
from snnipu.poptorch._errors import InvalidUse

__all__ = ["Options"]


def _refuse(name: str) -> NoReturn:
    raise InvalidUse(f"Cannot call `{name}` with popdist.poptorch.Options: the launcher decides that.")


class _Distributed(_poptorch.options._DistributedOptions):
    """The group ``Options.Distributed``, which refuses changes: the launcher sets the processes."""

    def __init__(self) -> None:
        super().__init__()
        _poptorch.options._DistributedOptions.configureProcessId(self, getInstanceIndex(), getNumInstances())

    def disable(self) -> NoReturn:
        """Raise ``poptorch.Error``: the launcher decides this."""
        _refuse("Distributed.disable")

    def setEnvVarNames(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``poptorch.Error``: the launcher decides this."""
        _refuse("Distributed.setEnvVarNames")

    def configureProcessId(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``poptorch.Error``: the launcher decides this."""
        _refuse("Distributed.configureProcessId")


class Options(_poptorch.Options):
    """``poptorch.Options`` of this instance.

    ``replicationFactor`` is the number of local replicas, and ``Distributed`` has the number of this instance.
    Changing either, or ``useIpuId``, raises ``poptorch.Error`` (a ``RuntimeError``).

    Args:
        ipus_per_replica: the IPUs that the program needs per replica; another number than the launcher's raises
            ``poptorch.Error``. None: not checked.
    """

    def __init__(self, ipus_per_replica: Optional[int] = None) -> None:
        super().__init__()
        if ipus_per_replica is not None:
            checkNumIpusPerReplica(ipus_per_replica)
        self.set(replication_factor=getNumLocalReplicas())
        self.__dict__["Distributed"] = _Distributed()

    def replicationFactor(self, replication_factor: int) -> NoReturn:
        """Raise ``poptorch.Error``: the launcher decides this."""
        _refuse("replicationFactor")

    def useIpuId(self, ipu_id: int) -> NoReturn:
        """Raise ``poptorch.Error``: the launcher decides this."""
        _refuse("useIpuId")
