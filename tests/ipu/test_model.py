"""The adapter of the IPU model's C interface."""

import contextlib
import dataclasses

import pytest
import torch
from support.operators import WatchedLibrary, needs_host_runtime, needs_library

import snnipu as snn
from snnipu import ipu, ops, poptorch, surrogate
from snnipu.backends import popart
from snnipu.ipu import model as ipu_model
from snnipu.ipu.model import IpuModel, IpuModelError, IpuModelTarget, IpuModelUnavailable, TensorType

LEAKY = {"neuron": "leaky", "variant": 0, "states": 1}
ATTRIBUTES = {**LEAKY, "surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}


KINDS = ["request_int", "request_float", "request_string", "request_ints", "request_floats"]


SPIKE = {"surrogate": 0, "surrogate_a": 1.0, "surrogate_b": 0.0}


@pytest.fixture
def library():
    if not ipu_model.available():
        pytest.skip(ipu_model.unavailable_reason())
    return WatchedLibrary()


@pytest.fixture
def model(library):
    return IpuModel(IpuModelTarget("mk2", 16), library)


def spikes_of(model, u, **attributes):
    return model.apply("SurrogateSpike", [u], {**SPIKE, **attributes})[0]


def lif_inputs(dtype=torch.float32, grad=True):
    torch.manual_seed(0)
    x = torch.randn(6, 3, 5).to(dtype).requires_grad_(grad)
    mem0, beta = torch.randn(3, 5).requires_grad_(grad), torch.rand(5).requires_grad_(grad)
    return [x, mem0, torch.tensor(0.7).requires_grad_(grad), beta, torch.tensor(1.2).requires_grad_(grad)]


def expected_lif(inputs):
    x, mem0, threshold, beta, graded = inputs
    return ops.lif_sequence(
        x, mem0, beta=beta, threshold=threshold, graded_spikes_factor=graded, spike_grad=surrogate.atan(2.0)
    )


def test_operator_and_gradient(model, library):
    inputs = lif_inputs()
    outs, expected_outs = model.apply("NeuronSequence", inputs, ATTRIBUTES), expected_lif(inputs)
    assert all(map(torch.equal, outs, expected_outs))
    torch.manual_seed(1)
    upstream = [torch.randn_like(out) for out in expected_outs]
    for outputs in ((0,), (1,), (0, 1)):  # the outputs on which the loss depends
        grads = [
            torch.autograd.grad(
                [sides[i] for i in outputs],
                inputs,
                [upstream[i] for i in outputs],
                retain_graph=True,
                allow_unused=True,
            )
            for sides in (outs, expected_outs)
        ]
        # Only spikes depend on the graded factor. If the loss uses no spikes, PopART's operators give zeros for it.
        assert [grad is None for grad in grads[1]] == [False] * 4 + [outputs == (1,)]
        for tensor, got, expected in zip(inputs, *grads):
            expected = torch.zeros_like(tensor) if expected is None else expected
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert [program.key.gradient for program in model.programs()] == [None, (0,), (1,), (0, 1)]
    assert library.calls.count("request_new") == library.calls.count("request_free")


def test_a_program_is_compiled_once_for_each_key(model, library):
    u = torch.ones(2, 3)
    spikes_of(model, u)
    spikes_of(model, u)
    assert len(model.programs()) == 1
    # Another value, shape or type, and an int instead of the equal float, need another program.
    spikes_of(model, u, surrogate_a=2.0)
    spikes_of(model, u.t())
    spikes_of(model, u.half())
    with pytest.raises(IpuModelError, match="surrogate_a is of another type"):
        spikes_of(model, u, surrogate_a=1)
    assert [program.name for program in model.programs()] == ["SurrogateSpike"] * 4
    target = IpuModelTarget("bow", 16, options=(("threads", "2"),))
    other = IpuModel(target, library)
    spikes_of(other, u)
    assert [program.key.target for program in other.programs()] == [target]
    assert library.calls.count("compile") == 6


def test_old_programs_are_freed(model, library, monkeypatch):
    monkeypatch.setattr(ipu_model, "CACHED_PROGRAMS", 2)
    for size in (1, 2, 3):
        spikes_of(model, torch.ones(size))
    assert len(model.programs()) == 2
    assert library.calls.count("program_free") == 1


def test_border_types(model):
    assert spikes_of(model, torch.ones(2, dtype=torch.float64)).dtype == torch.float64
    assert model.programs()[0].key.inputs == (TensorType("FLOAT", (2,)),)
    with pytest.raises(TypeError, match=r"SurrogateSpike: input 0: torch.bfloat16 has no equivalent"):
        spikes_of(model, torch.ones(2, dtype=torch.bfloat16))
    strided = (torch.arange(6.0) - 3).reshape(2, 3).t()
    assert torch.equal(spikes_of(model, strided), (strided > 0).float())


def test_attributes_keep_their_kind(model, library):
    attributes = {"factor": 2.0, "whole": 3, "flag": True, "text": "abc", "many": [1, 2], "numbers": (0.5, 1.5)}
    with pytest.raises(IpuModelError, match="has no attribute factor"):
        spikes_of(model, torch.ones(1), **attributes)
    kinds = dict(zip(sorted({**SPIKE, **attributes}), [name for name in library.calls if name in KINDS]))
    assert {name: kinds[name] for name in attributes} == {
        "factor": "request_float",
        "whole": "request_int",
        "flag": "request_int",
        "text": "request_string",
        "many": "request_ints",
        "numbers": "request_floats",
    }
    with pytest.raises(TypeError, match="'many': the model takes lists of int or of float"):
        spikes_of(model, torch.ones(1), many=["a"])


def test_errors_name_the_operator_and_the_kind(model, library):
    message = r"IPU model, SurrogateSpike: graph_memory_allocation_error: tile 0"
    with pytest.raises(IpuModelError, match=message) as caught:
        spikes_of(IpuModel(IpuModelTarget("mk2", 1), library), torch.ones(200_000))
    assert caught.value.kind == "graph_memory_allocation_error"
    with pytest.raises(IpuModelError, match=r"no operator .*Missing"):
        model.apply("Missing", [torch.ones(1)], {})
    assert library.calls.count("request_new") == library.calls.count("request_free")
    program = model.compile("SurrogateSpike", [TensorType("FLOAT", (1,))], SPIKE)
    with pytest.raises(ValueError, match="SurrogateSpike takes 1 inputs, got 2"):
        program.run([torch.ones(1)] * 2)
    with pytest.raises(ValueError, match="input 0 must be on the CPU"):
        program.run([torch.ones(1, device="meta")])
    library.run, library.error = (lambda *_: 1), (lambda: b"poplar_runtime_error: unlucky")
    with pytest.raises(IpuModelError, match="unlucky") as caught:
        program.run([torch.ones(1)])
    assert caught.value.kind == "poplar_runtime_error"


def test_a_missing_library_raises_with_the_build_command(tmp_path, monkeypatch):
    monkeypatch.setenv("SNNIPU_NATIVE_DIR", str(tmp_path))
    monkeypatch.setattr(ipu_model, "_library", None)
    with pytest.raises(IpuModelUnavailable, match=r"is not there: it is built .* pip install"):
        IpuModel().apply("Scale", [torch.ones(1)], {"factor": 1.0})
    assert not ipu_model.available()
    (tmp_path / ipu_model.LIBRARY).write_text("no library")
    assert "cannot be loaded" in ipu_model.unavailable_reason()


def test_the_ipu_model_is_no_library_of_an_instruction_set(tmp_path, monkeypatch):
    from snnipu.backends import host

    monkeypatch.setenv("SNNIPU_NATIVE_DIR", str(tmp_path))
    for name in ("libsnnipu-baseline.so", ipu_model.LIBRARY):
        (tmp_path / name).touch()
    assert host.available_isas() == ["baseline"]


def test_targets(monkeypatch):
    assert IpuModelTarget.from_text("bow:16:2") == IpuModelTarget("bow", 16, 2)
    assert IpuModelTarget.from_text("mk1") == IpuModelTarget("mk1")
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:4")
    assert IpuModel().target == IpuModelTarget("mk2", 4)
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:four")
    with pytest.raises(ValueError, match="SNNIPU_IPU_MODEL_TARGET: expected arch"):
        IpuModelTarget.default()
    for arguments, message in (
        (("mk7",), "target must be one of"),
        (("mk2", 1473), "tiles_per_ipu must be from 0 to 1472"),
        (("mk2", 0, 0), "ipus must be from 1"),
    ):
        with pytest.raises(ValueError, match=message):
            IpuModelTarget(*arguments)
    with pytest.raises(TypeError, match="options must be pairs"):
        IpuModelTarget(options=(("threads", 2),))


# ---- the real library


def predicted_and_counted(sizes, activity, batch_size, steps, recurrent):
    """Return the predicted performance of a network's plan, and the IPU model's cycles of each compute set of a step.

    The IPU model runs the network's operator and gradient with that plan.
    """
    more = {"batch_size": batch_size, "steps": steps, "recurrent": recurrent}
    spec = ipu.NetworkSpec.from_sizes(sizes, activity, **more)
    # The counts assume that all slots are in use.
    spec = dataclasses.replace(spec, spikes=tuple(map(float, spec.slots)))
    plan = ipu.plan(spec)
    net = snn.SparseNetwork(sizes, beta=0.9, max_spikes=list(spec.slots), bias=True)
    for layer, reads_itself in enumerate(recurrent):
        options = {"beta": 0.9, "max_spikes": spec.slots[layer + 1], "bias": True, "recurrent": reads_itself}
        net.layers[layer] = snn.SparseLeaky(sizes[layer], sizes[layer + 1], **options)
    net.ipu_plan = plan
    model = IpuModel(IpuModelTarget("mk2"))
    x = ops.dense_to_sparse((torch.rand(steps, batch_size, sizes[0]) < activity).float(), spec.slots[0])
    with popart.running_on(model, poptorch.custom_op), poptorch_runs(model):
        out = net(x)
    out.values.sum().backward()
    counts = {}
    for program in model.programs():
        for step in program.estimate()["steps"]:
            if step["executions"] == steps and step["kind"] == "compute":
                name = (program.key.gradient is not None, step["name"].rpartition("/")[2])
                counts[name] = {kind: step[f"{kind}_cycles"] for kind in ("compute", "exchange")}
    return ipu.estimate(plan), counts


@contextlib.contextmanager
def poptorch_runs(model):
    """Enter the context of a wrapped model's ``forward``, with custom operators on ``model``."""
    before = poptorch._tracing.set_execution_hook(lambda name, domain, version, *more: model.apply(name, *more))
    try:
        with poptorch._tracing.tracing(True):
            yield
    finally:
        poptorch._tracing.set_execution_hook(before)


@pytest.mark.slow
@needs_library
@needs_host_runtime
@pytest.mark.parametrize(
    ("sizes", "recurrent"), [([300, 120, 80, 10], ()), ([500, 400, 20], ()), ([300, 120, 80, 10], (True, False, True))]
)
def test_performance_model_agrees_with_the_counts(sizes, recurrent):
    """Each phase of a step has about the cycles that the IPU model counts in the graph."""
    predicted, counts = predicted_and_counted(sizes, 0.1, batch_size=12, steps=4, recurrent=recurrent)
    phases = {phase.name: phase.cycles for phase in predicted.phases}
    assert phases["words of bits"] == pytest.approx(counts[False, "merge"]["compute"], rel=0.05)
    assert phases["spike selection"] == pytest.approx(counts[False, "select"]["compute"], rel=0.02)
    for phase, compute_set, tolerance in (
        ("integrate and fire", (False, "lif"), 0.2),
        ("neuron gradients", (True, "lifBackward"), 0.2),
        ("weight and spike gradients", (True, "weights"), 0.1),
        ("sum of spike gradients", (True, "sumAll"), 0.35),
    ):
        assert phases[phase] == pytest.approx(counts[compute_set]["compute"], rel=tolerance), phase
    total = sum(sum(cycles.values()) for cycles in counts.values())
    assert predicted.cycles_per_step == pytest.approx(total, rel=0.1)
