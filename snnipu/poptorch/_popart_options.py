"""``Options._Popart``: settings of a PopART session. The host checks their names and types, and has no session."""

from typing import Any, Dict

from snnipu.poptorch._errors import InvalidArgument, check_int, check_type, suggestion
from snnipu.poptorch._options_base import OptionsDict

_BOOLS = """
aliasZeroCopy automaticLossScalingSettings.enabled batchSerializationSettings.concatOnExecutionPhaseChange
batchSerializationSettings.concatOnPipelineStageChange batchSerializationSettings.concatOnVirtualGraphChange
compileEngine constantWeights decomposeGradSum delayVarUpdates disableGradAccumulationTensorStreams
disableOptimizerStateTensorStreams dotOpNames enableDistributedReplicatedGraphs enableEngineCaching enableExplicitIR
enableExplicitMainLoops enableFloatingPointChecks enableFullyConnectedPass enableGradientAccumulation
enableInplaceAmbiguityChecking enableLoadAndOffloadRNGState enableMergeExchange enableNonStableSoftmax enableOutlining
enableOutliningCopyCostPruning enablePipelining enablePrefetchDatastreams enableReplicatedGraphs
enableSerializedMatmuls enableStableNorm enableStochasticRounding enableSupportedDataTypeCasting
ensureFp32LossScaleTensor explicitRecomputation exportPoplarComputationGraph exportPoplarVertexGraph groupHostSync
groupNormStridedChannelGrouping instrumentWithHardwareCycleCounter opxAliasChecking opxModifyChecking
rearrangeAnchorsOnHost rearrangeStreamsOnHost replicatedCollectivesSettings.mergeAllReduceCollectives
replicatedCollectivesSettings.prepareScheduleForMergingCollectives scheduleNonWeightUpdateGradientConsumersEarly
separateCallOpPdfs strictOpVersions useHostCopyOps
"""
_NUMBERS = """
accumulateOuterFragmentSettings.schedule accumulationAndReplicationReductionType accumulationFactor autoRecomputation
autodiffSettings.stitchStrategy automaticLossScalingSettings.binEdgeLocation
automaticLossScalingSettings.gradientTensorTrackingMethod automaticLossScalingSettings.thresholdUpperCountProportion
automaticLossScalingSettings.updatePeriod batchSerializationSettings.batchSchedule batchSerializationSettings.factor
batchSerializationSettings.method batchSerializationSettings.transformContext compilationProgressTotal
defaultBufferingDepth defaultPrefetchBufferingDepth executionPhaseSettings.phases executionPhaseSettings.stages
finalDotOp firstDotOp globalReplicaOffset globalReplicationFactor looseThresholdAtPeak
meanAccumulationAndReplicationReductionStrategy mergeVarUpdate mergeVarUpdateMemThreshold numIOTiles
outlineSequenceBreakCost outlineThreshold patterns_level subgraphCopyingStrategy swapLimitScheduler syntheticDataMode
timeLimitScheduler transitiveClosureOptimizationThreshold virtualGraphMode
"""
_STRINGS = """
cachePath customCodeletCompileFlags kahnTieBreaker logDir partialsTypeMatMuls saveInitializersToFile
serializedPoprithmsShiftGraphsDir
"""
_CONTAINERS = """
accumulateOuterFragmentSettings.excludedVirtualGraphs convolutionOptions customCodelets dotChecks engineOptions
gclOptions hardwareInstrumentations lstmOptions matmulOptions patterns reportOptions updatableNamedBuffers
"""

# Option name: (the kind's name in errors, accepted types).
_KINDS = {
    **dict.fromkeys(_BOOLS.split(), ("True or False", (bool, int))),
    **dict.fromkeys(_NUMBERS.split(), ("a number", (int, float))),
    **dict.fromkeys(_STRINGS.split(), ("a str", (str,))),
    **dict.fromkeys(_CONTAINERS.split(), ("a list, set or dict", (list, tuple, set, dict))),
}


class _PopartOptions(OptionsDict):
    """Session options by PopART's names; members of enumerations are integers.

    An unknown name raises ``poptorch.Error`` when it is set. PopTorch itself raises when it compiles.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values.update(instrumentWithHardwareCycleCounter=False, rearrangeAnchorsOnHost=False)

    @property
    def options(self) -> Dict[str, Any]:
        """The options that have been set, as a dictionary."""
        return self._values

    def set(self, key: str, value: Any) -> "_PopartOptions":  # type: ignore[override]
        """Set one session option; returns self.

        Args:
            key: PopART's name of the option.
            value: a bool, number, str or container, as the option needs.
        """
        self.checkIsFrozen()
        if key not in _KINDS:
            raise InvalidArgument(f"_Popart.set: unknown PopART option {key!r}{suggestion(str(key), _KINDS)}")
        kind, types = _KINDS[key]
        self.options[key] = check_type(value, f"_Popart.set({key!r})", types, kind)
        return self

    def setEngineOptions(self, engine_options: Dict[str, str]) -> "_PopartOptions":
        """Set options of the Poplar engine, by their names; returns self."""
        return self.set("engineOptions", engine_options)

    def setPatterns(self, patterns: Dict[str, bool], level: int = 2) -> "_PopartOptions":
        """Turn PopART's graph patterns on or off; returns self.

        Args:
            patterns: True or False for each pattern's name.
            level: the level of PopART's default patterns.
        """
        check_type(patterns, "_Popart.setPatterns: patterns", dict, "a dict of names to True or False")
        self.set("patterns_level", check_int(level, "_Popart.setPatterns: level"))
        return self.set("patterns", patterns)
