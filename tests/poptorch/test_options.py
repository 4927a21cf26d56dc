"""Options: the values that setters accept and refuse; freezing and copying."""

import pickle

import pytest
import torch
from support.poptorch_models import options, refused
from support.tables import each_row, lines_of

from snnipu import poptorch

SETTERS = lines_of(
    """
    autoRoundNumIPUs(True)
    broadcastBuffers(False)
    connectionType(poptorch.ConnectionType.OnDemand)
    deviceIterations(3)
    disableModuleNamescope()
    enableExecutableCaching('/some/folder')
    enableExecutableCaching(None)
    enableProfiling('/some/folder')
    enableStableNorm(True)
    enableSyntheticData(False)
    appendToLocationExcludes('a', 'b')
    inputReplicaGrouping(1, poptorch.CommGroupType.NoGrouping)
    logCycleCount(False)
    logDir('logs')
    maxRepeatLogs(None)
    modelName('name')
    outputMode(poptorch.OutputMode.EveryN, 2)
    randomSeed(42)
    relaxOptimizerAttributesChecks()
    replicationFactor(2)
    setAvailableMemoryProportion({'IPU0': 0.5})
    setExecutionStrategy(poptorch.ShardedExecution())
    showCompilationProgressBar(False)
    sourceLocationExcludes(['a'])
    syncPattern(poptorch.SyncPattern.SinglePipeline)
    updatableNamedBuffers(['buffer'])
    useIpuId(0)
    useIpuModel(True)
    useOfflineIpuTarget(21)
    Training.gradientAccumulation(4)
    Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Running)
    Training.setAutomaticLossScaling(True)
    Training.setConvolutionDithering(True)
    Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf)
    Precision.runningStatisticsAlwaysFloat(True)
    Precision.enableFloatingPointExceptions(True)
    Precision.enableStochasticRounding(True)
    Precision.setPartialsType(torch.half)
    Jit.traceModel(False)
    Distributed.configureProcessId(1, 2)
    Distributed.disable()
    TensorLocations.numIOTiles(64)
    TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().minElementsForOffChip(4))
    TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useReplicatedTensorSharding())
    TensorLocations.setAccumulatorLocation(poptorch.TensorLocationSettings().useIOTilesToLoad())
    _Popart.set('autoRecomputation', 3)
    _Popart.setPatterns({'TiedGather': False}, 0)
    _Popart.setEngineOptions({'target.syncReplicasIndependently': 'true'})
    """
)


def run(opts, call):
    """Run a call as a file of options has it."""
    return eval(f"opts.{call}", {"opts": opts, "poptorch": poptorch, "torch": torch})


@pytest.mark.parametrize("call", SETTERS)
def test_setters_return_their_object_and_used_options_are_frozen(call):
    opts = poptorch.Options()
    clone, owner = opts.clone(), call.partition("(")[0].rpartition(".")[0]
    assert run(clone, call) is (getattr(clone, owner) if owner else clone)
    poptorch.inferenceModel(torch.nn.Linear(2, 2), opts)
    if call.startswith("Jit.traceModel"):
        return  # the method changes no option
    before = repr(opts)
    with refused("these options are frozen"):
        run(opts, call)
    with pytest.raises(AttributeError):  # the class that PopTorch raises
        run(opts, call)
    assert repr(opts) == before


@each_row(r"""
deviceIterations(0) | deviceIterations: expected an int of at least 1, got 0
deviceIterations('2') | deviceIterations: expected an int, got '2' of type str
autoRoundNumIPUs(1) | autoRoundNumIPUs: expected True or False
outputMode(poptorch.OutputMode.EveryN) | outputMode: EveryN needs a positive output_return_period
outputMode(poptorch.OutputMode.EveryN, 0) | output_return_period: expected an int of at least 1
inputReplicaGrouping(3, poptorch.CommGroupType.Consecutive) | input_group_size 3 does not divide
inputReplicaGrouping(1, poptorch.CommGroupType.All) | input_group_type cannot be CommGroupType.All
setAvailableMemoryProportion({'0': 0.5}) | expected keys like 'IPU0', got '0'
setAvailableMemoryProportion({'IPU0': 1.5}) | \['IPU0'\]: expected a number between 0 and 1, got 1.5
setExecutionStrategy('pipelined') | setExecutionStrategy: expected a PipelinedExecution, ShardedExecution, Parallel
useOfflineIpuTarget(3) | expected ipu_version 1, 2 or 21, got 3
updatableNamedBuffers('buffer') | updatableNamedBuffers: expected a list of buffer names
anchorTensor('a', 3) | anchorTensor: long_name: expected a str
Precision.setPartialsType(torch.double) | expected torch.float or torch.half, got torch.float64
Jit.traceModel(True) | Jit.traceModel: True is no longer supported
Distributed.configureProcessId(2, 2) | process_id 2 is not below num_processes 2
TensorLocations.numIOTiles(33) | expected an even number, 32 to 192, got 33
TensorLocations.setWeightLocation({}) | setWeightLocation: expected TensorLocationSettings
_Popart.set('autoRecomputatoin', 3) | unknown PopART option.*did you mean 'autoRecomputation'
_Popart.set('enableOutlining', 'yes') | _Popart.set\('enableOutlining'\): expected True or False
_Popart.setPatterns([]) | setPatterns: patterns: expected a dict
Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction)
    | expected ReductionType.Mean or ReductionType.Sum
""")
def test_wrong_values_are_refused_and_named(row):
    call, message = row.split(" | ")
    opts = poptorch.Options()
    before = repr(opts)
    with refused(message):
        run(opts, call)
    assert repr(opts) == before


def test_unknown_options_are_named_with_a_suggestion():
    opts = poptorch.Options()
    with refused("no option 'deviceIteration'; did you mean 'deviceIterations'"):
        opts.deviceIteration(3)
    with refused("no option 'replicationfactor'"):
        opts.replicationfactor = 3
    with refused("no option 'gradient_acumulation'; did you mean"):
        opts.Training.set(gradient_acumulation=3)
    assert not hasattr(opts, "nothing_like_it")


def test_methods_take_keywords_and_name_a_missing_argument():
    opts = poptorch.Options().deviceIterations(device_iterations=3)
    assert opts.Training.gradientAccumulation(gradient_accumulation=2).gradient_accumulation == 2
    assert opts.device_iterations == 3
    assert opts.broadcastBuffers(False).broadcastBuffers().broadcast_buffers is True
    with pytest.raises(TypeError, match="deviceIterations: missing a required argument: 'device_iterations'"):
        opts.deviceIterations()
    with pytest.raises(
        TypeError, match=r"Precision\.enableStochasticRounding: got an unexpected keyword argument 'on'"
    ):
        opts.Precision.enableStochasticRounding(True, on=True)


def test_values_read_and_write_as_attributes():
    opts = options(5)
    assert opts.device_iterations == 5
    assert opts("device_iterations") == 5
    opts.replication_factor = 4
    assert opts.replication_factor == 4
    assert opts.Training.gradient_accumulation == 1
    assert not opts.exists("random_seed")
    assert opts.randomSeed(3).random_seed == 3
    with refused("replicationFactor: expected an int of at least 1"):
        opts.replication_factor = 0


def test_a_copy_changes_without_the_original():
    opts = options(2)
    opts.Training.gradientAccumulation(3)
    other = opts.clone()
    other.deviceIterations(4).Training.gradientAccumulation(5)
    other._Popart.set("enableOutlining", False)
    other.Precision.enableStochasticRounding(True)
    assert (opts.device_iterations, opts.Training.gradient_accumulation) == (2, 3)
    assert "enableOutlining" not in opts._Popart.options
    assert other._Popart.options["enableStochasticRounding"] is True
    restored = pickle.loads(pickle.dumps(other))
    assert repr(restored) == repr(other)
    restored.Precision.enableStochasticRounding(False)
    assert restored._Popart.options["enableStochasticRounding"] is False


def test_a_wrapper_copies_its_options():
    opts = poptorch.Options()
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), opts)
    assert opts.defaultOutputMode()
    assert model.options.output_mode == poptorch.OutputMode.All
    assert poptorch.trainingModel(torch.nn.Linear(2, 2), opts).options.output_mode == poptorch.OutputMode.Final


def test_as_a_dictionary():
    opts = options(2)
    with refused("choose an output mode first"):
        opts.toDict()
    values = opts.outputMode(poptorch.OutputMode.All).toDict()
    assert values["device_iterations"] == 2
    assert values["gradient_accumulation"] == 1
    assert values["execution_mode"] == 0
    assert values["num_distributed_processes"] == 1


def test_from_a_file(tmp_path):
    file = tmp_path / "options.cfg"
    file.write_text(
        "# a comment\n\ndeviceIterations(3)\n  Training.gradientAccumulation(2)\n"
        "outputMode(poptorch.OutputMode.Sum)\n_Popart.set('autoRecomputation', 3)\n"
        "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))\n"
        "setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage('a')))\n"
    )
    opts = options(replicas=2)
    assert opts.loadFromFile(str(file)) is opts
    assert (opts.device_iterations, opts.replication_factor) == (3, 2)
    assert opts.Training.gradient_accumulation == 2
    assert opts.output_mode == poptorch.OutputMode.Sum
    assert isinstance(opts._execution_strategy, poptorch.ShardedExecution)


@pytest.mark.parametrize(
    "line",
    [
        "deviceIterations(3",
        "deviceIterations(0)",
        "noSuchOption(1)",
        "logDir(open('x'))",
        "outputMode(poptorch.NoSuchMode)",
    ],
)
def test_from_a_file_that_is_wrong(tmp_path, line):
    file = tmp_path / "options.cfg"
    file.write_text(f"deviceIterations(2)\n{line}\n")
    with pytest.raises(poptorch.ConfigFileError, match=r"options\.cfg, line 2"):
        poptorch.Options().loadFromFile(str(file))


def test_from_json_and_the_environment(monkeypatch):
    json = '{"deviceIterations": 3, "Training.gradientAccumulation": 2, "_Popart.set": ["autoRecomputation", 3],'
    json += ' "outputMode": "OutputMode.All", "enableExecutableCaching": "/cache"}'
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", json)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/elsewhere")
    opts = poptorch.Options()
    assert opts.device_iterations == 3
    assert opts.Training.gradient_accumulation == 2
    assert opts.output_mode == poptorch.OutputMode.All
    assert opts._Popart.options["autoRecomputation"] == 3
    assert opts._Popart.options["cachePath"] == "/cache"


def test_processes_from_the_environment(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = poptorch.Options().Distributed
    assert (distributed.processId, distributed.numProcesses) == (3, 4)


def test_the_seed_is_set_at_once():
    poptorch.Options().randomSeed(11)
    first = torch.rand(1)
    torch.manual_seed(11)
    assert torch.equal(torch.rand(1), first)


@pytest.mark.parametrize("level", ["TRACE", "DEBUG", "INFO", "WARN", "ERR", "OFF", 0, 3])
def test_log_levels(level):
    before = poptorch.logger.level
    poptorch.setLogLevel(level)
    poptorch.logger.setLevel(before)


def test_an_unknown_log_level_is_refused():
    with refused("expected one of TRACE, DEBUG, INFO, WARN, ERR, OFF, got 'LOUD'"):
        poptorch.setLogLevel("LOUD")


def test_unavailable_names_are_named():
    with refused(r"poptorch\.autocast is not available in snnipu's host runtime"):
        _ = poptorch.autocast
    assert not hasattr(poptorch, "autocast")
    with pytest.raises(ImportError, match="autocast"):
        from snnipu.poptorch import autocast  # noqa: F401


def test_the_runtime_has_a_mark_and_a_version():
    assert poptorch.is_host_runtime
    assert poptorch.__version__.startswith("3.4.0+snnipu.host.")
    assert poptorch.poptorch_core.Error is poptorch.Error
