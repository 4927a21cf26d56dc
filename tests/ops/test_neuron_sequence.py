"""The operator of generated neurons: its kernel against its reference, its adjoint, its registration."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
import torch.utils._python_dispatch
from oracle import FUSED, assert_all_equal, relative_error, with_threads
from support.leaky_operator import flat
from support.neuron_cases import KERNEL, TOLERANCES, VARIANTS, arguments_of, check

import snnipu as snn
from snnipu import surrogate
from snnipu.backends import host, kernels
from snnipu.ops import _neurons
from snnipu.ops import neuron_sequence as operator

needs_native = pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or "")
# Single kernels of forward and backward pass.
NATIVE = SimpleNamespace(
    neuron_sequence_fwd=kernels.neuron_sequence_fwd, neuron_sequence_bwd=torch.ops.snnipu.neuron_sequence_bwd
)


def upstream_of(out, number):
    spk, states, final = out
    grads = [torch.randn_like(state) if state.numel() else None for state in states]
    return torch.randn_like(spk), grads, [torch.randn_like(state) for state in final]


@needs_native
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_kernel_equals_the_reference(name, variant, dtype):
    """The backward pass computes states again from the input, or reads stored states instead of it."""
    # Leaky has kernels for each surrogate.
    wide = name == "leaky" and dtype in (torch.float32, torch.float64)
    for spike_grad in [ours for ours, _ in FUSED.values()] if wide else [surrogate.atan()]:
        for shape, constant, options in (
            ((6, 3, 45), None, {}),
            ((3, 45), 5, {"counts": (1,), "initial": False}),
            ((1, 1, 1), None, {"counts": (1,)}),
        ):
            results = check(NATIVE, name, variant, shape, dtype, constant, kernel=spike_grad.kernel, **options)
            assert not any(result._is_view() for result in results)  # programs change results in place


@needs_native
def test_the_same_bits_for_any_number_of_threads():
    x, states, parameters = arguments_of("synaptic", (12, 20, 1000), counts=(1,))

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
    x, states, parameters = arguments_of(name, (6, 3, 45), torch.float64)
    plan = _neurons.plan(name, next(chosen for chosen, number in _neurons.find(name).options if number == variant))
    every = (x, states, parameters, name, variant, None, (1 << len(states)) - 1, False)
    after = operator.neuron_sequence_fwd_reference(*every)[1]
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
        x, states, parameters = arguments_of(name, (steps, neurons), initial=False)
        every = (x, states, parameters, name, variant, None, (1 << len(states)) - 1, False)
        spk, after, _ = kernels.neuron_sequence_fwd(*every)
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
    x, states, parameters = arguments_of("synaptic", shape, constant=steps)
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
    x, states, _ = arguments_of("synaptic", (2, 5), constant=0)
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
