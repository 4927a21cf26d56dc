"""PopTorch's operators, annotations and execution strategies."""

import logging

import pytest
import torch
from support.poptorch_models import model_of

from snnipu import poptorch

X = torch.arange(6.0).reshape(2, 3)


def infer(function, *args, opts=None):
    return poptorch.inferenceModel(model_of(lambda self, *args: function(*args)), opts)(*args)


def gradient(function):
    """Return the gradient of a parameter from which ``function`` computes a loss."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    model = model_of(lambda self, x: poptorch.identity_loss(function(self.w * x), "sum"), w=weight)
    poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))(X)
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
    [
        (lambda: poptorch.recomputationCheckpoint(X, 1), "recomputationCheckpoint: expected a torch.Tensor"),
        (lambda: poptorch.set_available_memory(X, 1.1), "expected a number between 0 and 1, got 1.1"),
        (lambda: poptorch.set_overlap_for_input(X, "no_overlap"), "mode: expected one of OverlapMode.NoOverlap"),
        (lambda: poptorch.ipu_print_tensor(X, float_format="hex"), "expected float_format"),
        (lambda: poptorch.ctc_beam_search_decoder(X, X), "ctc_beam_search_decoder is not available"),
        (lambda: poptorch.NameScope(1), "NameScope: name: expected a str"),
        (lambda: poptorch.Attribute(x=1), "Attribute: expected a dict for x"),
        (lambda: poptorch.CPU(1, "one"), "CPU: layer_to_call must be callable"),
        (lambda: poptorch.MultiConv().planType("Serial"), "MultiConv.planType: expected one of MultiConvPlanType"),
        (lambda: poptorch.MultiConv().partialsTypes(torch.int8), "Expected torch.float or torch.half"),
        (lambda: poptorch.MultiConv().enableConvDithering([]), "enableConvDithering: expected at least one value"),
        (lambda: poptorch.profiling.Channel(1), "Channel: name: expected a str"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(poptorch.Error, match=message):
        call()


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
    conv = torch.nn.Conv1d(1, 1, 1)
    plan = poptorch.MultiConv().availableMemoryProportions((0.1, 0.2)).partialsTypes(torch.half)
    plan.enableConvDithering(True).planType(poptorch.MultiConvPlanType.Serial).perConvReservedTiles(4).cycleBackOff(0.1)
    with plan, pytest.raises(poptorch.Error, match=r"Nested poptorch\.MultiConv"):
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


@pytest.mark.parametrize(
    ("loop", "error", "message"),
    [
        (
            lambda x: poptorch.for_loop(2, lambda y: y, x),
            ValueError,
            "for_loop: inputs must be a list of tensors, got an object of type Tensor",
        ),
        (
            lambda x: poptorch.for_loop(2, lambda y: y, [x, 5]),
            ValueError,
            r"for_loop: inputs\[1\] must be a torch.Tensor, got int",
        ),
        (lambda x: poptorch.for_loop(2.0, lambda y: y, [x]), ValueError, "for_loop: count: expected an int"),
        (lambda x: poptorch.for_loop(2, lambda y: (y, y), [x]), poptorch.Error, "takes 1, returned 2"),
        (lambda x: poptorch.for_loop(2, lambda y: y[:1], [x]), poptorch.Error, r"output 0 .* got \(1, 3\)"),
        (lambda x: poptorch.for_loop(2, lambda y: y.half(), [x]), poptorch.Error, "got .* torch.float16"),
        (
            lambda x: poptorch.cond(x.sum() > 0, abs, x, abs, [x]),
            ValueError,
            "cond: then_inps must be a list of tensors, got Tensor",
        ),
    ],
)
def test_loops_and_branches_check_their_arguments(loop, error, message):
    with pytest.raises(error, match=message):
        infer(loop, X)


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("for_loop", lambda x: poptorch.for_loop(2, lambda y: y * 2, [x])[0]),
        ("cond", lambda x: poptorch.cond(x.sum() > 0, abs, [x], abs, [x])[0]),
        ("CPU", poptorch.CPU(abs, "abs")),
    ],
)
def test_operators_without_gradient_are_refused_in_training(what, function):
    with pytest.raises(poptorch.Error, match=rf"poptorch\.{what}\(\) is only supported in inference"):
        gradient(function)
    function(X)  # runs outside wrappers


def test_branches_follow_the_condition():
    def both(x):
        return poptorch.cond(x.sum() > 0, lambda a, b: a + b, [x, x], lambda: -x, [])[0]

    assert torch.equal(infer(both, X), 2 * X)
    assert torch.equal(infer(both, -X), X)


def test_a_cpu_operator_calls_its_function():
    assert torch.equal(infer(poptorch.CPU(lambda x: x.numpy().sum() * x, "sum"), X), 15 * X)
    assert not any(p.requires_grad for p in poptorch.CPU(torch.nn.Linear(1, 1), "layer")._layer_to_call.parameters())


def test_dynamic_slices():
    start = torch.tensor([1])
    x = torch.arange(12.0).reshape(6, 2)
    assert torch.equal(infer(lambda x, s: poptorch.dynamic_slice(x, 0, s, 4, 2), x, start), x[1:5:2])
    updated = infer(lambda x, s: poptorch.dynamic_update(x, torch.zeros(2, 2), 0, s, 2), x, start)
    assert torch.equal(updated, torch.cat([x[:1], torch.zeros(2, 2), x[3:]]))
    for call, message in [
        (lambda: poptorch.dynamic_slice(x, 0, torch.tensor(4), 3, 1), "start 4 and size 3 leave dimension 0 of 6"),
        (lambda: poptorch.dynamic_slice(x, 0, 1, 3, 1), "dynamic_slice: start: expected a torch.Tensor"),
        (lambda: poptorch.dynamic_slice(x, 0.0, start, 3, 1), "dynamic_slice: dim: expected an int"),
        (lambda: poptorch.dynamic_update(x, torch.zeros(2), 0, start, 2), "must have same dimensionality"),
        (lambda: poptorch.dynamic_update(x, torch.zeros(2, 2).half(), 0, start, 2), "must have same dtype"),
    ]:
        with pytest.raises(poptorch.Error, match=message):
            call()


def test_serialized_products_are_products():
    a, b = torch.randn(4, 6), torch.randn(6, 3)
    mode = poptorch.MatMulSerializationMode
    for which, factor in ((mode.InputChannels, 2), (mode.ReducingDim, 3), (mode.OutputChannels, 3), (mode.Disabled, 0)):
        assert torch.equal(poptorch.serializedMatMul(a, b, which, factor, keep_precision=True), a @ b)
    with pytest.raises(poptorch.Error, match="factor 4 does not divide ReducingDim of 6"):
        poptorch.serializedMatMul(a, b, mode.ReducingDim, 4)
    with pytest.raises(poptorch.Error, match="mode: expected one of MatMulSerializationMode"):
        poptorch.serializedMatMul(a, b, "none")


# Custom operators.


@pytest.fixture
def scaled_add():
    def implementation(inputs, attributes):
        a, b = inputs
        return [a + attributes["scale"] * b, a - b]

    poptorch.custom_ops.register("ScaledAdd", "test.domain", 1, implementation)
    yield lambda a, b, **attributes: poptorch.custom_op(
        (a, b), "ScaledAdd", "test.domain", 1, example_outputs=[a, a], attributes=attributes or {"scale": 2.0}
    )
    poptorch.custom_ops.unregister("ScaledAdd", "test.domain", 1)


def test_a_registered_operator_runs_and_has_its_gradient(scaled_add):
    first, second = infer(lambda x: scaled_add(x, 3 * x), X)
    assert torch.equal(first, 7 * X)
    assert torch.equal(second, -2 * X)
    assert torch.equal(gradient(lambda x: scaled_add(x, x)[0]), 3 * X)
    assert "test.domain.ScaledAdd:1" in poptorch.custom_ops.registered()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"scale": None}, "attribute 'scale' must be a float, int, str or a list"),
        ({"scale": [1, 2.0]}, "elements of attribute 'scale' must be of one type"),
        ({3: 1.0}, "attribute names are strings, got 3"),
        ({"scale": "ä"}, "attributes are ASCII, got 'ä'"),
    ],
)
def test_attributes_are_checked(scaled_add, attributes, message):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.custom_op([X, X], "ScaledAdd", "test.domain", 1, [X, X], attributes)


def test_missing_operators_and_outputs_are_named(scaled_add):
    with pytest.raises(poptorch.Error, match=r"no operator 'Cube' of domain 'com\.acme', version 1"):
        poptorch.custom_op([X, X], "Cube", "com.acme", 1, example_outputs=[X, X])
    with pytest.raises(poptorch.Error, match=r"no operator 'ScaledAdd' of domain 'test\.domain', version 2"):
        poptorch.custom_op([X, X], "ScaledAdd", "test.domain", 2, [X, X], {"scale": 1.0})
    with pytest.raises(poptorch.Error, match="has 2 outputs, example_outputs 1"):
        poptorch.custom_op([X, X], "ScaledAdd", "test.domain", 1, [X], {"scale": 1.0})
    with pytest.raises(poptorch.Error, match=r"output 1 of .* is \(2, 3\) torch.float32, example_outputs\[1\] \(1,\)"):
        poptorch.custom_op([X, X], "ScaledAdd", "test.domain", 1, [X, torch.ones(1)], {"scale": 1.0})
    with pytest.raises(poptorch.Error, match=r"inputs\[1\] must be a torch.Tensor, got int"):
        poptorch.custom_op([X, 1], "ScaledAdd", "test.domain", 1, [X, X])


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


class Blocks(torch.nn.Module):
    def __init__(self, ids=("A", "B"), ipus=(0, 1)):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
        self.ids, self.ipus = ids, ipus

    def forward(self, x):
        poptorch.Block.useAutoId()
        for layer, name, ipu in zip(self.layers, self.ids, self.ipus):
            poptorch.Block.start(name, ipu_id=ipu)
            x = layer(x)
        return x, poptorch.identity_loss(x, "mean")


STRATEGIES = [
    poptorch.PipelinedExecution("A", "B"),
    poptorch.PipelinedExecution(poptorch.Stage("A", "B")),
    poptorch.PipelinedExecution(["A"], poptorch.Stage("B").ipu(1)),
    poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
    poptorch.ShardedExecution(),
    poptorch.SerialPhasedExecution(["A"], ["B"]).setTensorsLiveness(poptorch.Liveness.AlwaysLive),
    poptorch.ParallelPhasedExecution([poptorch.Phase("A"), poptorch.Phase(poptorch.Stage("B").ipu(0))]),
    poptorch.ParallelPhasedExecution("A", "B").sendTensorsOffChipAfterFwd().useSeparateBackwardPhase(),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_do_not_change_results(strategy):
    model = Blocks()
    opts = poptorch.Options().setExecutionStrategy(strategy).deviceIterations(2)
    assert torch.equal(poptorch.inferenceModel(model, opts)(X)[0], torch.cat([model(x[None])[0] for x in X]))


def test_blocks_with_automatic_ids_match_the_strategy():
    opts = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution("0", "1"))
    opts.deviceIterations(2)
    poptorch.inferenceModel(Blocks(ids=(None, None)), opts)(X)
    with pytest.raises(poptorch.Error, match=r"Block: 'A' is in no stage of the execution strategy: \['0', '1'\]"):
        poptorch.inferenceModel(Blocks(), opts)(X)


def test_automatic_ids_restart_in_each_run():
    class Unnamed(Blocks):
        def forward(self, x):
            for layer in self.layers:
                poptorch.Block.start()
                x = layer(x)
            return x

    opts = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution("0", "1")).deviceIterations(2)
    wrapped = poptorch.inferenceModel(Unnamed(), opts)
    assert torch.equal(wrapped(X), wrapped(X))


def options(strategy=None, accumulation=1, iterations=1, replicas=1):
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    return opts if strategy is None else opts.setExecutionStrategy(strategy)


PLAIN = torch.nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("wrap", "model", "opts", "message"),
    [
        (poptorch.trainingModel, Blocks(), options(accumulation=2), r"gradientAccumulation must be .* stages \(3\)"),
        (poptorch.inferenceModel, Blocks(), options(), r"deviceIterations must be .* stages \(2\)"),
        (poptorch.inferenceModel, Blocks(ipus=(0, 77)), options(iterations=2), r"Too many IPUs requested \(78\)"),
        (
            poptorch.inferenceModel,
            Blocks(),
            options(poptorch.PipelinedExecution("A", poptorch.Stage("B").ipu(77)), iterations=2),
            r"Too many IPUs requested \(78\)",
        ),
        (poptorch.inferenceModel, Blocks(), options(iterations=2, replicas=64), r"Too many IPUs requested \(128\)"),
        (poptorch.inferenceModel, Blocks(ipus=(None, 0)), options(), "no IPU was specified for block A"),
        (poptorch.inferenceModel, PLAIN, options(poptorch.PipelinedExecution("A")), r"none of the blocks \['A'\]"),
    ],
)
def test_models_that_an_ipu_would_refuse_are_refused(wrap, model, opts, message):
    with pytest.raises(poptorch.Error, match=message):
        wrap(model, opts).compile(torch.ones(128, 3))


def test_models_that_an_ipu_would_run_run(caplog):
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        poptorch.trainingModel(Blocks(), options(accumulation=3))(X[:1].expand(3, 3))
        poptorch.trainingModel(Blocks(ipus=(1, 1)), options())(X)
        poptorch.trainingModel(Blocks(), options(poptorch.ShardedExecution()))(X)
        poptorch.inferenceModel(PLAIN, options(poptorch.PipelinedExecution()))(X)
    assert not caplog.records


def test_unused_reserved_ipus_warn(caplog):
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        poptorch.inferenceModel(Blocks(ipus=(0, 2)), options(iterations=2))(X)
    assert "needs 3 IPUs, and PopTorch reserves a power of 2, here 4" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        poptorch.inferenceModel(Blocks(ipus=(0, 2)), options(iterations=2).autoRoundNumIPUs())(X)
    assert not caplog.records


def test_operations_outside_of_blocks_are_refused():
    def forward(x):
        shape = x.shape
        with poptorch.Block("A", ipu_id=0):
            x = 2 * x
        assert x.shape == shape
        return x + 1

    with pytest.raises(poptorch.Error, match=r"No active Block.*add"):
        infer(forward, X)


def test_begin_block_marks_a_module_or_a_function():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    assert poptorch.BeginBlock(model[0], "first", ipu_id=0) is model[0]
    assert "BeginBlock(user_id=first, ipu_id=0)" in repr(poptorch.inferenceModel(model))
    expected = model(X)
    assert torch.equal(poptorch.inferenceModel(model)(X), expected)
    with pytest.raises(poptorch.Error, match="begins a block already"):
        poptorch.BeginBlock(model[0])
    with pytest.raises(poptorch.Error, match=r"expected a torch.nn.Module or a function, got 3"):
        poptorch.BeginBlock(3)
    poptorch.removeBlocks(model)
    assert not model[0]._forward_pre_hooks
    poptorch.BeginBlock(model[0])
    with pytest.raises(poptorch.Error, match=r"removeBlocks: expected a torch\.nn\.Module"):
        poptorch.removeBlocks(3)

    @poptorch.BlockFunction("last", ipu_id=1)
    def double(x):
        return 2 * x

    double = poptorch.BeginBlock(double, "last", ipu_id=1)
    assert torch.equal(infer(double, X), 2 * X)


def test_a_module_that_runs_often_is_one_block():
    layer = poptorch.BeginBlock(torch.nn.Linear(3, 3), ipu_id=0)
    opts = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution("0"))
    infer(lambda x: layer(layer(layer(x))), X, opts=opts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: poptorch.Stage(1), "Stage: block ids are strings, got 1"),
        (lambda: poptorch.Phase("A", poptorch.Stage("B")), "Phase: expected only stages or only block ids"),
        (lambda: poptorch.Phase("A", "B").ipus(0, 1), "the phase has 1 stages, got 2 ipus"),
        (lambda: poptorch.PipelinedExecution("A", "A"), "block 'A' is in more than one stage"),
        (lambda: poptorch.PipelinedExecution(3), "expected block ids, stages or one AutoStage, got 3"),
        (lambda: poptorch.PipelinedExecution("A").stage("B"), r"unknown block 'B'; known: \['A'\]"),
        (lambda: poptorch.SerialPhasedExecution(), "expected at least one phase"),
        (lambda: poptorch.SerialPhasedExecution("A").setTensorsLiveness(0), "expected one of Liveness.AlwaysLive"),
        (lambda: poptorch.Block("A", ipu_id=-1), "Block: ipu_id: expected an int of at least 0"),
    ],
)
def test_strategies_check_their_arguments(make, message):
    with pytest.raises(poptorch.Error, match=message):
        make()


def test_phases_and_stages_can_be_read_and_placed():
    strategy = poptorch.ParallelPhasedExecution(
        [poptorch.Phase(poptorch.Stage("A"), poptorch.Stage("B")), poptorch.Phase("C")]
    )
    strategy.phase(0).ipus(0, 2)
    assert strategy.stage("B")._ipu == 2
    assert strategy.phase(1).stage(0).blocks == ("C",)
    assert strategy.backendOptions()["serial_phases_execution"] is False
