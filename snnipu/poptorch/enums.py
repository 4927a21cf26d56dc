"""PopTorch's enumerations, with its names and values (PopTorch user guide, "API reference", "Enumerations")."""

import enum


class MeanReductionStrategy(enum.IntEnum):
    """The time at which the mean over accumulated gradients divides. All three give the same result on the host."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(enum.IntEnum):
    """The way a ``DataLoader`` reads. The host reads synchronously in every mode and gives the same batches."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(enum.IntEnum):
    """The way an asynchronous accessor passes the dataset to its process. The host starts no such process."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class OutputMode(enum.IntEnum):
    """The micro-batches whose outputs a call returns.

    ``All``: every micro-batch. ``EveryN``: the micro-batches of every N-th device iteration. ``Final``: the last
    micro-batch. ``Sum``: the sum of the outputs of all. ``Default``: ``Final`` in training, ``All`` in inference.
    """

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ConnectionType(enum.IntEnum):
    """The time to attach to a device. ``Never`` allows compiling but not running, on the host as well."""

    Always = 0
    OnDemand = 1
    Never = 2


class HalfFloatCastingBehavior(enum.IntEnum):
    """The type in which an operation on half and float operands computes; PopTorch 3 always uses float."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class ReductionType(enum.IntEnum):
    """The way the gradients of micro-batches are combined."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class SyncPattern(enum.IntEnum):
    """The way IPUs synchronise; no effect on the host."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class MatMulSerializationMode(enum.Enum):
    """The dimension along which ``serializedMatMul`` splits; no effect on the result."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(enum.IntEnum):
    """The memory that holds tensors between phases; no effect on the host."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(enum.Enum):
    """The extent to which host transfers overlap with computation; no effect on the host."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(enum.IntEnum):
    """The stage of a block: the number of its IPU, or the next number."""

    SameAsIpu = 0
    AutoIncrement = 1


class MultiConvPlanType(enum.IntEnum):
    """The way a ``MultiConv`` is planned; no effect on the host."""

    Parallel = 0
    Serial = 1


class CommGroupType(enum.IntEnum):
    """The way replicas form groups.

    N replicas in m groups of k are grouped as follows. ``Consecutive``: {0..k-1}, {k..2k-1}, .... ``Orthogonal``:
    {0, m, 2m, ...}, {1, m+1, ...}, .... ``All``: one group. ``NoGrouping``: one group per replica.
    """

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(enum.IntEnum):
    """The replicas whose copies of a grouped variable are returned."""

    OnePerGroup = 0
    AllReplicas = 2


__all__ = [name for name, value in globals().items() if isinstance(value, type)]
