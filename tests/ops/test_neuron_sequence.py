"""The operator of generated neurons: its kernel against its reference, its adjoint, its registration."""

import contextlib
import itertools

import pytest
import torch
import torch.utils._python_dispatch
from oracle import FUSED, assert_all_equal, relative_error, with_threads
from support.leaky_operator import flat

import snnipu as snn
from snnipu import surrogate
from snnipu.backends import host, kernels
from snnipu.ops import _neurons
from snnipu.ops import neuron_sequence as operator

needs_native = pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or "")
VARIANTS = [
    pytest.param(name, variant, id=f"{name}-{variant}")
    for name in _neurons.BUILT
    for variant in range(len(_neurons.find(name).steps))
]
KERNEL = surrogate.atan(2.0).kernel


def arguments_of(name, variant, shape, dtype, constant=None, per_neuron=True, initial=True):
    """Return x, the initial states and the kernels' parameters, in a range in which the neuron is stable."""
    neuron = _neurons.find(name)
    c = torch.float64 if dtype == torch.float64 else torch.float32
    x = (torch.randn(shape) * 2).to(dtype)
    step = shape if constant is not None else shape[1:]
    states = [torch.randn(step, dtype=c) if initial else None for _ in neuron.states]
    count = step[-1] if per_neuron else 1
    parameters = [torch.rand(count, dtype=c) * 0.6 + 0.3 for _ in neuron.parameters]
    return x, states, parameters


def stored(flags):
    """Return the bits of the stored states."""
    return operator.bits(list(flags))


def upstream_of(out, number):
    spk, states, final = out
    grads = [torch.randn_like(state) if state.numel() else None for state in states]
    return torch.randn_like(spk), grads, [torch.randn_like(state) for state in final]


TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2**-6}


@needs_native
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_kernel_equals_the_reference(name, variant, dtype):
    """The backward pass computes states again from the input, or reads stored states instead of it."""
    neuron = _neurons.find(name)
    output, read = neuron.steps[variant].output_state, _neurons.reads_all(name, variant)
    for shape, constant, per_neuron, initial in (
        ((6, 3, 45), None, True, True),
        ((3, 45), 5, False, False),
        ((1, 1, 1), None, False, True),
    ):
        x, states, parameters = arguments_of(name, variant, shape, dtype, constant, per_neuron, initial)
        store = stored(place != output for place in range(len(states)))
        forward = (x, states, parameters, name, variant, constant, store, True)
        actual, expected = kernels.neuron_sequence_fwd(*forward), operator.neuron_sequence_fwd_reference(*forward)
        for result, other in zip(flat(actual), flat(expected)):
            assert result.dtype == other.dtype
            assert torch.equal(result, other)
            # Programs change results in place.
            assert not result._is_view()
            assert not other._is_view()
        need = ([True] * len(states), [True] * len(parameters))
        ways = [(x, [])]
        if constant is None:
            after = operator.neuron_sequence_fwd_reference(*forward[:6], stored([True] * len(states)), False)[1]
            stored_states = [state if read.states >> place & 1 else x.new_empty(0) for place, state in enumerate(after)]
            ways.append((x if read.x or not read.states else None, [stored_states]))
        grads = upstream_of(expected, constant)
        # Leaky has kernels for each surrogate.
        wide = name == "leaky" and dtype in (torch.float32, torch.float64)
        surrogates = [ours for ours, _ in FUSED.values()] if wide else [surrogate.atan()]
        for (first, last), spike_grad in itertools.product(ways, surrogates):
            backward = (*grads, first, states, parameters, name, variant, constant, *spike_grad.kernel, *need, *last)
            actual = torch.ops.snnipu.neuron_sequence_bwd(*backward)
            expected = operator.neuron_sequence_bwd_reference(*backward)
            terms = expected[0].double().abs().sum() / expected[0].numel() * x.numel() ** 0.5
            for result, other in zip(flat(actual), flat(expected)):
                of_parameter = any(result is each for each in actual[2])
                assert result.dtype == other.dtype
                assert relative_error(result, other, terms if of_parameter else None) <= TOLERANCES[dtype]


@needs_native
def test_the_same_bits_for_any_number_of_threads():
    x, states, parameters = arguments_of("synaptic", 0, (12, 20, 1000), torch.float32, per_neuron=False)

    def run():
        out = kernels.neuron_sequence_fwd(x, states, parameters, "synaptic", 0, None, 0b11, True)
        grads = (out[0], list(out[1]), list(out[2]))
        back = (*grads, x, states, parameters, "synaptic", 0, None, *KERNEL, [True] * 2, [True] * len(parameters))
        return flat(out) + flat(kernels.neuron_sequence_bwd(*back))

    assert_all_equal(with_threads(run, (1, 2, 3)))


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_one_parameter_learns(name, variant):
    """The backward pass reads only the states that its gradient needs."""
    x, states, parameters = arguments_of(name, variant, (6, 3, 45), torch.float64)
    plan = _neurons.plan(name, next(chosen for chosen, number in _neurons.find(name).options if number == variant))
    after = operator.neuron_sequence_fwd_reference(
        x, states, parameters, name, variant, None, stored([True] * len(states)), False
    )[1]
    grads = (torch.randn_like(x), [None if s == plan.output else torch.randn_like(x) for s in range(len(states))], [])
    for place, needs in enumerate(plan.reads_for):
        need = ([True] * len(states), [other == place for other in range(len(parameters))])
        what = (states, parameters, name, variant, None, *KERNEL, *need)
        expected = operator.neuron_sequence_bwd_reference(*grads, x, *what)
        reads = plan.reads | needs
        read = reads.states & ~(1 << plan.output if plan.remakes_output else 0)
        stored_states = [state if read >> s & 1 else x.new_empty(0) for s, state in enumerate(after)]
        for inputs in ((x,), (x if reads.x or not read else None, *what, stored_states)):
            arguments = inputs if len(inputs) > 1 else (*inputs, *what)
            for backward in (torch.ops.snnipu.neuron_sequence_bwd, operator.neuron_sequence_bwd_reference):
                actual = backward(*grads, *arguments)
                for gradient, other in zip([actual[0], *actual[1]], [expected[0], *expected[1]]):
                    assert relative_error(gradient, other) <= 1e-12
                terms = expected[0].abs().sum()
                assert relative_error(actual[2][place], expected[2][place], terms) <= 1e-12


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("name", ["leaky", "synaptic"])
@pytest.mark.parametrize(("steps", "neurons"), [(1, 40000), (7, 450), (3000, 300)])
def test_states_computed_again_give_the_same_bits(name, steps, neurons):
    """Blocks of every size: many, one, and blocks made small for a long sequence."""
    for variant in range(len(_neurons.find(name).steps)):
        x, states, parameters = arguments_of(name, variant, (steps, neurons), torch.float32, initial=False)
        every = stored([True] * len(states))
        spk, after, _ = kernels.neuron_sequence_fwd(x, states, parameters, name, variant, None, every, False)
        grads = (torch.randn_like(spk), [None] * len(states), [])
        need = ([True] * len(states), [True] * len(parameters))
        backward = (*grads, x, states, parameters, name, variant, None, *KERNEL, *need)
        again, from_stored = kernels.neuron_sequence_bwd(*backward), kernels.neuron_sequence_bwd(*backward, after)
        assert all(torch.equal(actual, other) for actual, other in zip(flat(again), flat(from_stored)))


class _Seen(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@needs_native
@pytest.mark.parametrize("name", ["Leaky", "Lapicque"])
@pytest.mark.parametrize("single", [True, False])
def test_who_watches_sees_the_operators(name, single):
    """Profilers and modes see the operators. Otherwise the kernels are called directly, with the same results."""
    layer = getattr(snn, name)(beta=0.9)
    x = torch.randn(3, 2, 5)
    run = (lambda leaf: layer(leaf[0], torch.zeros(2, 5))) if single else layer.sequence
    results = []
    for mode in (contextlib.nullcontext(), _Seen()):
        leaf = x.clone().requires_grad_()
        with mode:
            out = run(leaf)
            out[0].sum().backward()
        results.append([*out, leaf.grad])
    assert all(torch.equal(actual, other) for actual, other in zip(*results))
    assert {"snnipu::neuron_sequence_fwd", "snnipu::neuron_sequence_bwd"} <= set(mode.names)


@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck came with torch 2.4")
@pytest.mark.parametrize("steps", [None, 0, 3])
@pytest.mark.parametrize(("store", "final"), [(0b00, True), (0b01, False), (0b11, True), (0b11, False)])
def test_opcheck(steps, store, final):
    tests = ("test_schema", "test_faketensor")
    shape = (4, 2, 5) if steps is None else (2, 5)
    x, states, parameters = arguments_of("synaptic", 0, shape, torch.float32, steps)
    forward = (x, states, parameters, "synaptic", 0, steps, store, final)
    torch.library.opcheck(torch.ops.snnipu.neuron_sequence_fwd.default, forward, test_utils=tests)
    if steps == 0:
        return
    out = torch.ops.snnipu.neuron_sequence_fwd(*forward)
    grads = upstream_of(out, steps)
    stored_states = [list(out[1])] if store == 0b11 and steps is None else []
    need = ([True, False], [True] * len(parameters))
    backward = (*grads[:2], grads[2] or [None, None], x, *forward[1:6], *KERNEL, *need, *stored_states)
    torch.library.opcheck(torch.ops.snnipu.neuron_sequence_bwd.default, backward, test_utils=tests)


@pytest.mark.parametrize("store", [(True, True), (True, False)])
def test_what_a_step_saves_cannot_be_changed_by_the_caller(store):
    """Loops change tensors in place between a step and its backward pass."""
    x, states, _ = arguments_of("synaptic", 0, (2, 5), torch.float32, 0)
    values = {"alpha": torch.tensor(0.7), "beta": torch.tensor(0.8), "threshold": torch.tensor(0.5)}
    values["graded_spikes_factor"] = torch.tensor(1.0)
    options = {"reset_mechanism": "subtract", "reset_delay": True}
    results = []
    for change in (False, True):
        leaf = x.clone().requires_grad_()
        current = leaf * 1
        inputs = [state.clone() for state in states]
        parts = {name: value.clone() for name, value in values.items()}
        outputs = operator.neuron_apply(
            "synaptic", current, inputs, parts, options=options, num_steps=0, spike_grad=surrogate.atan(), store=store
        )
        loss = outputs.spk.sum() + outputs.states[0].square().sum()
        if change:
            for tensor in (current, *inputs, *parts.values()):
                tensor.add_(1)
        loss.backward()
        results.append(leaf.grad)
    assert torch.equal(*results)
