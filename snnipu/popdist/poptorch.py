"""``popdist.poptorch.Options``: PopTorch's options with replicas and process as the launcher says."""

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
    """Refuses what the launcher decides."""

    def __init__(self) -> None:
        super().__init__()
        _poptorch.options._DistributedOptions.configureProcessId(self, getInstanceIndex(), getNumInstances())

    def disable(self) -> NoReturn:
        """Refused."""
        _refuse("Distributed.disable")

    def setEnvVarNames(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse("Distributed.setEnvVarNames")

    def configureProcessId(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse("Distributed.configureProcessId")


class Options(_poptorch.Options):
    """``poptorch.Options`` of this instance.

    ``replicationFactor`` is PopDist's number of local replicas, ``Distributed`` names this instance. Changing either,
    or ``useIpuId``, raises ``poptorch.Error`` (a ``RuntimeError``).
    """

    def __init__(self, ipus_per_replica: Optional[int] = None) -> None:
        super().__init__()
        if ipus_per_replica is not None:
            checkNumIpusPerReplica(ipus_per_replica)
        self.set(replication_factor=getNumLocalReplicas())
        self.__dict__["Distributed"] = _Distributed()

    def replicationFactor(self, replication_factor: int) -> NoReturn:
        """Refused."""
        _refuse("replicationFactor")

    def useIpuId(self, ipu_id: int) -> NoReturn:
        """Refused."""
        _refuse("useIpuId")
