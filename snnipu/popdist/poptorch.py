"""``popdist.poptorch.Options``: PopTorch's options, with the replicas and process that the launcher sets."""

from typing import Any, Callable, NoReturn, Optional

from snnipu import poptorch as _poptorch
from snnipu.popdist import (
    checkNumIpusPerReplica,
    getInstanceIndex,
    getNumInstances,
    getNumLocalReplicas,
)
from snnipu.poptorch._errors import InvalidUse

__all__ = ["Options"]


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``poptorch.Error``: the launcher decides this."""
        raise InvalidUse(f"Cannot call `{name}` with popdist.poptorch.Options: the launcher decides that.")

    return refuse


class _Distributed(_poptorch.options._DistributedOptions):
    """The group ``Options.Distributed``, which refuses changes: the launcher sets the processes."""

    disable = _refusal("Distributed.disable")
    setEnvVarNames = _refusal("Distributed.setEnvVarNames")
    configureProcessId = _refusal("Distributed.configureProcessId")

    def __init__(self) -> None:
        super().__init__()
        _poptorch.options._DistributedOptions.configureProcessId(self, getInstanceIndex(), getNumInstances())


class Options(_poptorch.Options):
    """``poptorch.Options`` of this instance.

    ``replicationFactor`` is the number of local replicas, and ``Distributed`` has the number of this instance.
    Changing either, or ``useIpuId``, raises ``poptorch.Error`` (a ``RuntimeError``).

    Args:
        ipus_per_replica: the IPUs that the program needs per replica; another number than the launcher's raises
            ``poptorch.Error``. None: not checked.
    """

    replicationFactor = _refusal("replicationFactor")
    useIpuId = _refusal("useIpuId")

    def __init__(self, ipus_per_replica: Optional[int] = None) -> None:
        super().__init__()
        if ipus_per_replica is not None:
            checkNumIpusPerReplica(ipus_per_replica)
        self.set(replication_factor=getNumLocalReplicas())
        self.__dict__["Distributed"] = _Distributed()
