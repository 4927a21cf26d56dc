"""PopTorch's enumerations, with its names and values (PopTorch user guide, "API reference", "Enumerations")."""

import enum


class MeanReductionStrategy(enum.IntEnum):
    """When the mean over accumulated gradients divides. The result on a host is the same for all three."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(enum.IntEnum):
    """How a ``DataLoader`` reads. The host runtime reads synchronously in every mode and gives the same batches."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(enum.IntEnum):
    """How an asynchronous accessor passes the dataset to its process. The host runtime needs no such process."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class OutputMode(enum.IntEnum):
    """Which micro-batches' outputs a call returns.

    ``All``: of every micro-batch. ``EveryN``: of every N-th device iteration. ``Final``: of the last micro-batch.
    ``Sum``: their sum. ``Default``: ``Final`` in training, ``All`` in inference.
    """

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ConnectionType(enum.IntEnum):
    """When to attach to a device. ``Never`` allows compiling but not running, on a host as well."""

    Always = 0
    OnDemand = 1
    Never = 2


class HalfFloatCastingBehavior(enum.IntEnum):
    """What an operation does that mixes half and float operands; since PopTorch 3.0 always ``HalfUpcastToFloat``."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class ReductionType(enum.IntEnum):
    """How the gradients of micro-batches are combined."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class SyncPattern(enum.IntEnum):
    """How IPUs synchronise; no meaning on a host."""

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
    """Where tensors stay between phases; no meaning on a host."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(enum.Enum):
    """How far host transfers overlap with computation; no meaning on a host."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(enum.IntEnum):
    """How blocks get their stage: that of their IPU, or a new one each."""

    SameAsIpu = 0
    AutoIncrement = 1


class MultiConvPlanType(enum.IntEnum):
    """How a ``MultiConv`` is planned; no meaning on a host."""

    Parallel = 0
    Serial = 1


class CommGroupType(enum.IntEnum):
    """How replicas form groups.

    With N replicas in m groups of k: ``Consecutive`` {0..k-1}, {k..2k-1}, ...; ``Orthogonal`` {0, m, 2m, ...},
    {1, m+1, ...}, ...; ``All``: one group; ``NoGrouping``: a group a replica.
    """

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(enum.IntEnum):
    """Which replicas' copies of a grouped variable come back."""

    OnePerGroup = 0
    AllReplicas = 2
