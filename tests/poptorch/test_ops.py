"""PopTorch's operators, annotations and execution strategies."""

import pytest
import torch
from support.poptorch_models import evaluated, model_of, options, refused, training, warnings_in
from support.tables import assert_refused, cells_of, each_row, lines_of
from torch import nn

from snnipu import poptorch
from snnipu.poptorch import inferenceModel

X = torch.arange(6.0).reshape(2, 3)


def infer(function, *args, opts=None):
    return inferenceModel(model_of(lambda self, *args: function(*args)), opts)(*args)


def gradient(function):
    """Return the gradient of a parameter from which ``function`` computes a loss."""
    weight = nn.Parameter(torch.ones(2, 3))
    model = model_of(lambda self, x: poptorch.identity_loss(function(self.w * x), "sum"), w=weight)
    training(model, "SGD", lr=1.0)[0](X)
    return 1 - model.w.detach()


# Operators that return their inputs.


@pytest.mark.parametrize(
    "identity",
    [
        poptorch.nop,
        poptorch.recomputationCheckpoint,
        lambda x: poptorch.set_available_memory(x, 0.3),
        lambda x: poptorch.set_overlap_for_input(x, poptorch.OverlapMode.OverlapAccumulationLoop),
        lambda x: poptorch.set_overlap_for_output(x, poptorch.OverlapMode.NoOverlap),
        poptorch.ipu_print_tensor,
    ],
)
def test_identities_keep_values_and_gradients(identity):
    assert torch.equal(infer(identity, X), X)
    assert torch.equal(gradient(identity), X)


def test_checkpoints_keep_structure():
    a, b = infer(poptorch.recomputationCheckpoint, X, 2 * X)
    assert torch.equal(a, X)
    assert torch.equal(b, 2 * X)
    assert isinstance(infer(lambda x: poptorch.recomputationCheckpoint([x, x]), X), list)


@pytest.mark.parametrize(
    ("call", "message"),
    cells_of(
        """
    recomputationCheckpoint(X, 1)           | recomputationCheckpoint: expected a torch.Tensor
    set_available_memory(X, 1.1)            | expected a number between 0 and 1, got 1.1
    set_overlap_for_input(X, 'no_overlap')  | mode: expected one of OverlapMode.NoOverlap
    ipu_print_tensor(X, float_format='hex') | expected float_format
    poptorch.ctc_beam_search_decoder(X, X)  | ctc_beam_search_decoder is not available
    NameScope(1)                            | NameScope: name: expected a str
    Attribute(x=1)                          | Attribute: x: expected a dict
    CPU(1, 'one')                           | CPU: layer_to_call: expected a function or module
    MultiConv().planType('Serial')          | MultiConv.planType: expected one of MultiConvPlanType
    MultiConv().partialsTypes(torch.int8)   | Expected torch.float or torch.half
    MultiConv().enableConvDithering([])     | enableConvDithering: expected at least one value
    profiling.Channel(1)                    | Channel: name: expected a str
    """
    ),
)
def test_wrong_arguments_are_named(call, message):
    with refused(message):
        evaluated(call, X=X)


def test_printed_tensors_have_titles_and_gradients(capsys):
    gradient(lambda x: poptorch.ipu_print_tensor(x, "summation") * 2)
    out = capsys.readouterr().out
    assert "summation: ((0., 1., 2.)" in out
    assert "summation_gradient: ((2., 2., 2.)" in out
    gradient(lambda x: poptorch.ipu_print_tensor(x, "quiet", print_gradient=False))
    assert "quiet_gradient" not in capsys.readouterr().out
    poptorch.ipu_print_tensor(X, "", True, 4, 1, 0, 2, "scientific", " ", "<", ">")
    assert capsys.readouterr().out == "tensor: <<0.00e+00 ... 2.00e+00>\n <3.00e+00 ... 5.00e+00>>\n"


def test_annotations_change_no_result():
    conv = nn.Conv1d(1, 1, 1)
    plan = poptorch.MultiConv().availableMemoryProportions((0.1, 0.2)).partialsTypes(torch.half)
    plan.enableConvDithering(True).planType(poptorch.MultiConvPlanType.Serial).perConvReservedTiles(4).cycleBackOff(0.1)
    with plan, refused(r"Nested poptorch\.MultiConv"):
        plan.__enter__()
    channel = poptorch.profiling.Channel("mine")

    def marked(x):
        with plan, poptorch.NameScope("name"), poptorch.Attribute(__outline={"layer": "a"}), channel.tracepoint("t"):
            return conv(x[:, None])

    assert torch.equal(infer(marked, X), conv(X[:, None]))
    assert channel.instrument(conv, "forward") is conv


# Control flow and slices.


def test_loops_repeat_their_body_on_copies():
    def double(x, y):
        x += x
        return x, y + 1

    x = X.clone()
    a, b = infer(lambda x, y: poptorch.for_loop(3, double, [x, y]), x, X)
    assert torch.equal(a, 8 * X)
    assert torch.equal(b, X + 3)
    assert torch.equal(x, X)
    assert torch.equal(infer(lambda x: poptorch.for_loop(4, lambda y: y * 2, [x])[0], X), 16 * X)
    assert torch.equal(infer(lambda x: poptorch.for_loop(0, double, [x, x])[0], X), X)


@each_row(r"""
for_loop(2, lambda y: y, x) | ValueError: for_loop: inputs: expected a list of tensors, got .* of type Tensor
for_loop(2, lambda y: y, [x, 5]) | ValueError: for_loop: inputs\[1\]: expected a torch.Tensor, got 5 of type int
for_loop(2.0, lambda y: y, [x]) | ValueError: for_loop: count: expected an int
for_loop(2, lambda y: (y, y), [x]) | Error: for_loop: body: expected 1 outputs, as inputs, got 2
for_loop(2, lambda y: y[:1], [x]) | Error: output 0 .* got \(1, 3\)
for_loop(2, lambda y: y.half(), [x]) | Error: got .* torch.float16
cond(x.sum() > 0, abs, x, abs, [x]) | ValueError: cond: then_inps: expected a list of tensors, got .* of type Tensor
""")
def test_loops_and_branches_check_their_arguments(row):
    loop, error = row.split(" | ")
    assert_refused(f"infer(lambda x: {loop}, X) | {error}", {**vars(poptorch), **globals()})


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("for_loop", lambda x: poptorch.for_loop(2, lambda y: y * 2, [x])[0]),
        ("cond", lambda x: poptorch.cond(x.sum() > 0, abs, [x], abs, [x])[0]),
        ("CPU", poptorch.CPU(abs, "abs")),
    ],
)
def test_operators_without_gradient_are_refused_in_training(what, function):
    with refused(rf"poptorch\.{what}\(\) is only supported in inference"):
        gradient(function)
    function(X)  # runs outside wrappers


def test_branches_follow_the_condition():
    def both(x):
        return poptorch.cond(x.sum() > 0, lambda a, b: a + b, [x, x], lambda: -x, [])[0]

    assert torch.equal(infer(both, X), 2 * X)
    assert torch.equal(infer(both, -X), X)


def test_a_cpu_operator_calls_its_function():
    assert torch.equal(infer(poptorch.CPU(lambda x: x.numpy().sum() * x, "sum"), X), 15 * X)
    assert not any(p.requires_grad for p in poptorch.CPU(nn.Linear(1, 1), "layer")._layer_to_call.parameters())


def test_dynamic_slices():
    start = torch.tensor([1])
    x = torch.arange(12.0).reshape(6, 2)
    assert torch.equal(infer(lambda x, s: poptorch.dynamic_slice(x, 0, s, 4, 2), x, start), x[1:5:2])
    updated = infer(lambda x, s: poptorch.dynamic_update(x, torch.zeros(2, 2), 0, s, 2), x, start)
    assert torch.equal(updated, torch.cat([x[:1], torch.zeros(2, 2), x[3:]]))


@each_row("""
dynamic_slice(x, 0, torch.tensor(4), 3, 1) | Error: start 4 and size 3 leave dimension 0 of 6
dynamic_slice(x, 0, 1, 3, 1) | Error: dynamic_slice: start: expected a torch.Tensor
dynamic_slice(x, 0.0, start, 3, 1) | Error: dynamic_slice: dim: expected an int
dynamic_update(x, torch.zeros(2), 0, start, 2) | Error: must have same dimensionality
dynamic_update(x, torch.zeros(2, 2).half(), 0, start, 2) | Error: must have same dtype
""")
def test_dynamic_slices_check_their_arguments(row):
    assert_refused(row, {**vars(poptorch), **globals()}, x=torch.zeros(6, 2), start=torch.tensor([1]))


def test_serialized_products_are_products():
    a, b = torch.randn(4, 6), torch.randn(6, 3)
    mode = poptorch.MatMulSerializationMode
    for which, factor in ((mode.InputChannels, 2), (mode.ReducingDim, 3), (mode.OutputChannels, 3), (mode.Disabled, 0)):
        assert torch.equal(poptorch.serializedMatMul(a, b, which, factor, keep_precision=True), a @ b)
    with refused("factor 4 does not divide ReducingDim of 6"):
        poptorch.serializedMatMul(a, b, mode.ReducingDim, 4)
    with refused("mode: expected one of MatMulSerializationMode"):
        poptorch.serializedMatMul(a, b, "none")


# Custom operators.


def custom(inputs, attributes=None, outputs=(X, X), name="ScaledAdd", version=1):
    return poptorch.custom_op(inputs, name, "test.domain", version, example_outputs=outputs, attributes=attributes)


@pytest.fixture
def scaled_add():
    def implementation(inputs, attributes):
        a, b = inputs
        return [a + attributes["scale"] * b, a - b]

    poptorch.custom_ops.register("ScaledAdd", "test.domain", 1, implementation)
    yield lambda a, b, **attributes: custom((a, b), attributes or {"scale": 2.0}, [a, a])
    poptorch.custom_ops.unregister("ScaledAdd", "test.domain", 1)


def test_a_registered_operator_runs_and_has_its_gradient(scaled_add):
    first, second = infer(lambda x: scaled_add(x, 3 * x), X)
    assert torch.equal(first, 7 * X)
    assert torch.equal(second, -2 * X)
    assert torch.equal(gradient(lambda x: scaled_add(x, x)[0]), 3 * X)
    assert "test.domain.ScaledAdd:1" in poptorch.custom_ops.registered()


@each_row(r"""
custom([X, X], {"scale": None}) | Error: attribute 'scale': expected a float, int, str or a list
custom([X, X], {"scale": [1, 2.0]}) | Error: elements of attribute 'scale' must be of one type
custom([X, X], {3: 1.0}) | Error: attribute names: expected a str, got 3
custom([X, X], {"scale": "ä"}) | Error: attributes are ASCII, got 'ä'
custom([X, X], name="Cube") | Error: no operator 'Cube' of domain 'test\.domain', version 1
custom([X, X], {"scale": 1.0}, version=2) | Error: no operator 'ScaledAdd' of domain 'test\.domain', version 2
custom([X, X], {"scale": 1.0}, [X]) | Error: expected 1 outputs, as example_outputs, got 2
custom([X, X], {"scale": 1.0}, [X, X[0, :1]]) | Error: output 1 must be \(1,\) torch.float32,
    as example_outputs\[1\], got \(2, 3\) torch.float32
custom([X, 1]) | Error: inputs\[1\]: expected a torch.Tensor, got 1 of type int
""")
def test_wrong_custom_operators_are_named(scaled_add, row):
    assert_refused(row, {**vars(poptorch), **globals()})


def test_an_execution_hook_runs_operators_inside_wrappers(scaled_add):
    from snnipu.poptorch import _tracing

    calls = []

    def hook(name, domain, version, inputs, attributes):
        calls.append((name, domain, version, attributes))
        return [inputs[0] * 10, inputs[1]] if attributes["scale"] == 2.0 else None

    before = _tracing.set_execution_hook(hook)
    try:
        assert torch.equal(scaled_add(X, X)[0], 3 * X)
        assert torch.equal(infer(lambda x: scaled_add(x, x)[0], X), 10 * X)
        assert torch.equal(infer(lambda x: scaled_add(x, x, scale=1.0)[0], X), 2 * X)
    finally:
        assert _tracing.set_execution_hook(before) is hook
    assert [call[3]["scale"] for call in calls] == [2.0, 1.0]


# Blocks and execution strategies.


class Blocks(nn.Module):
    def __init__(self, ids=("A", "B"), ipus=(0, 1)):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.ids, self.ipus = ids, ipus

    def forward(self, x):
        poptorch.Block.useAutoId()
        for layer, name, ipu in zip(self.layers, self.ids, self.ipus):
            poptorch.Block.start(name, ipu_id=ipu)
            x = layer(x)
        return x, poptorch.identity_loss(x, "mean")


STRATEGIES = lines_of(
    """
    PipelinedExecution('A', 'B')
    PipelinedExecution(Stage('A', 'B'))
    PipelinedExecution(['A'], Stage('B').ipu(1))
    PipelinedExecution(AutoStage.AutoIncrement)
    ShardedExecution()
    SerialPhasedExecution(['A'], ['B']).setTensorsLiveness(Liveness.AlwaysLive)
    ParallelPhasedExecution([Phase('A'), Phase(Stage('B').ipu(0))])
    ParallelPhasedExecution('A', 'B').sendTensorsOffChipAfterFwd().useSeparateBackwardPhase()
    """
)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_do_not_change_results(strategy):
    model = Blocks()
    opts = options(2, setExecutionStrategy=evaluated(strategy))
    assert torch.equal(inferenceModel(model, opts)(X)[0], torch.cat([model(x[None])[0] for x in X]))


def test_blocks_with_automatic_ids_match_the_strategy():
    opts = options(2, setExecutionStrategy=poptorch.PipelinedExecution("0", "1"))
    inferenceModel(Blocks(ids=(None, None)), opts)(X)
    with refused(r"Block: 'A' is in no stage of the execution strategy: \['0', '1'\]"):
        inferenceModel(Blocks(), opts)(X)


def test_automatic_ids_restart_in_each_run():
    class Unnamed(Blocks):
        def forward(self, x):
            for layer in self.layers:
                poptorch.Block.start()
                x = layer(x)
            return x

    opts = options(2, setExecutionStrategy=poptorch.PipelinedExecution("0", "1"))
    wrapped = inferenceModel(Unnamed(), opts)
    assert torch.equal(wrapped(X), wrapped(X))


PLAIN = nn.Linear(3, 3)


@each_row(r"""
trainingModel(Blocks(), options(accumulation=2)) | Error: gradientAccumulation must be .* stages \(3\)
inferenceModel(Blocks(), options()) | Error: deviceIterations must be .* stages \(2\)
inferenceModel(Blocks(ipus=(0, 77)), options(2)) | Error: Too many IPUs requested \(78\)
inferenceModel(Blocks(), options(2, setExecutionStrategy=PipelinedExecution("A", Stage("B").ipu(77)))) | Error: Too many
    IPUs requested \(78\)
inferenceModel(Blocks(), options(2, 64)) | Error: Too many IPUs requested \(128\)
inferenceModel(Blocks(ipus=(None, 0)), options()) | Error: no IPU was specified for block A
inferenceModel(PLAIN, options(setExecutionStrategy=PipelinedExecution("A"))) | Error: none of the blocks \['A'\]
""")
def test_models_that_an_ipu_would_refuse_are_refused(row):
    model, error = row.split(" | ")
    assert_refused(f"{model}.compile(torch.ones(128, 3)) | {error}", {**vars(poptorch), **globals()})


def test_models_that_an_ipu_would_run_run(caplog):
    with warnings_in(caplog):
        poptorch.trainingModel(Blocks(), options(accumulation=3))(X[:1].expand(3, 3))
        poptorch.trainingModel(Blocks(ipus=(1, 1)), options())(X)
        poptorch.trainingModel(Blocks(), options(setExecutionStrategy=poptorch.ShardedExecution()))(X)
        inferenceModel(PLAIN, options(setExecutionStrategy=poptorch.PipelinedExecution()))(X)
    assert not caplog.records


def test_unused_reserved_ipus_warn(caplog):
    with warnings_in(caplog):
        inferenceModel(Blocks(ipus=(0, 2)), options(2))(X)
    assert "needs 3 IPUs, and PopTorch reserves a power of 2, here 4" in caplog.text
    caplog.clear()
    with warnings_in(caplog):
        inferenceModel(Blocks(ipus=(0, 2)), options(2).autoRoundNumIPUs())(X)
    assert not caplog.records


def test_operations_outside_of_blocks_are_refused():
    def forward(x):
        shape = x.shape
        with poptorch.Block("A", ipu_id=0):
            x = 2 * x
        assert x.shape == shape
        return x + 1

    with refused(r"No active Block.*add"):
        infer(forward, X)


def test_begin_block_marks_a_module_or_a_function():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    assert poptorch.BeginBlock(model[0], "first", ipu_id=0) is model[0]
    assert "BeginBlock(user_id=first, ipu_id=0)" in repr(inferenceModel(model))
    expected = model(X)
    assert torch.equal(inferenceModel(model)(X), expected)
    with refused("begins a block already"):
        poptorch.BeginBlock(model[0])
    with refused(r"expected a torch.nn.Module or a function, got 3"):
        poptorch.BeginBlock(3)
    poptorch.removeBlocks(model)
    assert not model[0]._forward_pre_hooks
    poptorch.BeginBlock(model[0])
    with refused(r"removeBlocks: module: expected a torch\.nn\.Module"):
        poptorch.removeBlocks(3)

    @poptorch.BlockFunction("last", ipu_id=1)
    def double(x):
        return 2 * x

    double = poptorch.BeginBlock(double, "last", ipu_id=1)
    assert torch.equal(infer(double, X), 2 * X)


def test_a_module_that_runs_often_is_one_block():
    layer = poptorch.BeginBlock(nn.Linear(3, 3), ipu_id=0)
    opts = options(setExecutionStrategy=poptorch.PipelinedExecution("0"))
    infer(lambda x: layer(layer(layer(x))), X, opts=opts)


@pytest.mark.parametrize(
    ("make", "message"),
    cells_of(
        r"""
    Stage(1)                                         | Stage: block_ids: expected a str, got 1
    Phase('A', Stage('B'))                           | Phase: expected only stages or only block ids
    Phase('A', 'B').ipus(0, 1)                       | the phase has 1 stages, got 2 ipus
    PipelinedExecution('A', 'A')                     | block 'A' is in more than one stage
    PipelinedExecution(3)                            | expected block ids, stages or one AutoStage, got 3
    PipelinedExecution('A').stage('B')               | unknown block 'B'; known: \['A'\]
    SerialPhasedExecution()                          | expected at least one phase
    SerialPhasedExecution('A').setTensorsLiveness(0) | expected one of Liveness.AlwaysLive
    Block('A', ipu_id=-1)                            | Block: ipu_id: expected an int of at least 0
    """
    ),
)
def test_strategies_check_their_arguments(make, message):
    with refused(message):
        evaluated(make)


def test_phases_and_stages_can_be_read_and_placed():
    strategy = poptorch.ParallelPhasedExecution(
        [poptorch.Phase(poptorch.Stage("A"), poptorch.Stage("B")), poptorch.Phase("C")]
    )
    strategy.phase(0).ipus(0, 2)
    assert strategy.stage("B")._ipu == 2
    assert strategy.phase(1).stage(0).blocks == ("C",)
    assert strategy.backendOptions()["serial_phases_execution"] is False
