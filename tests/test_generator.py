"""The generator: its adjoints against autograd, and the operations that it refuses."""

import math
import os
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import ATAN, Spike, looped
from support.commands import python
from support.tables import each_row, rows

import snnipu as snn
from snnipu import _generator, equations, surrogate
from snnipu._generator import Adjoint, Step, TraceError
from snnipu.backends import host
from snnipu.backends import neurons as kernels

EXAMPLES = int(os.environ.get("SNNIPU_HYPOTHESIS_EXAMPLES", "50"))


FUNCTIONS = {
    "spike": Spike.apply,
    "surrogate": lambda u, g: surrogate.surrogate_gradient(ATAN, u, g),
    "stored": lambda value: value,
}


def forward(step, x, states, derived):
    """Return outputs [T, ...] and the states before every step, computed by the recorded operations."""
    outputs, befores = [], []
    for current in x:
        befores.append(states)
        tensors = {id(step.x): current}
        tensors.update((id(value), tensor) for value, tensor in zip(step.before, states))
        tensors.update((id(value), tensor) for value, tensor in zip(step.derived, derived))
        spk, *states = _generator.evaluate([step.spk, *step.after], tensors, **FUNCTIONS)
        outputs.append(states if step.output_state is not None else [spk, *states])
    return [torch.stack(torch.broadcast_tensors(*values)) for values in zip(*outputs)], befores


def backward(step, adjoint, x, befores, derived, grads):
    """Return gradients of x, initial states and derived parameters (summed over time), by the recorded adjoint."""
    zero = torch.zeros_like(x[0])
    first_state = 0 if step.output_state is not None else 1
    external = [list(grad) for grad in grads[first_state:]]
    carry = [grad[-1] for grad in external]
    grad_x, sums = [], [zero] * len(derived)
    for t in range(len(x) - 1, -1, -1):
        known = {id(step.x): x[t], id(adjoint.grad_spk): grads[0][t]}
        seeds = [grad[t - 1] if t else zero for grad in external]
        for values, tensors in (
            (step.before, befores[t]),
            (step.derived, derived),
            (adjoint.grad_after, carry),
            (adjoint.seeds, seeds),
        ):
            known.update((id(value), tensor) for value, tensor in zip(values, tensors))
        results = _generator.evaluate([adjoint.grad_x, *adjoint.grad_before, *adjoint.grad_derived], known, **FUNCTIONS)
        results = [zero if result is None else result for result in results]
        grad_x.append(results[0])
        carry = results[1 : 1 + len(carry)]
        sums = [total + result for total, result in zip(sums, results[1 + len(carry) :])]
    return torch.stack(grad_x[::-1]), carry, sums


def derive(step, parameters):
    """Compute the derived parameters by PyTorch under autograd."""
    return _generator.evaluate(step.derived, {id(value): parameters[name] for name, value in step.raw.items()})


def check(function, options, x, initial, parameters):
    """Compare the recorded step and adjoint with a loop of ``function`` under autograd. Return the relative errors."""
    step = Step(function, options)
    adjoint = Adjoint(step)
    x = x.requires_grad_()
    initial = [state.requires_grad_() for state in initial]
    parameters = {name: value.requires_grad_() for name, value in parameters.items()}
    states, outputs = initial, []
    for current in x:
        spk, *states = function(current, *states, **parameters, spike=Spike.apply, **(options or {}))
        states = [spk, *states] if step.output_state is not None else states
        outputs.append(states if step.output_state is not None else [spk, *states])
    expected = [torch.stack(torch.broadcast_tensors(*values)) for values in zip(*outputs)]
    derived = derive(step, parameters)
    with torch.no_grad():
        own_outputs, befores = forward(step, x, initial, derived)
    for actual, other in zip(own_outputs, expected):
        assert torch.equal(torch.nan_to_num(actual), torch.nan_to_num(other))
    grads = [torch.randn_like(output) for output in expected]
    inputs = [x, *initial, *parameters.values()]
    total = sum((output * grad).sum() for output, grad in zip(expected, grads))
    gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    with torch.no_grad():
        grad_x, grad_initial, sums = backward(step, adjoint, x, befores, derived, grads)
    # PyTorch differentiates the derived parameters.
    through = [(value, total) for value, total in zip(derive(step, parameters), sums) if value.requires_grad]
    tensors = list(parameters.values())
    values = [value for value, _ in through]
    totals = [total.sum_to_size(value.shape) for value, total in through]
    grad_parameters = (
        torch.autograd.grad(values, tensors, totals, allow_unused=True) if values else [None] * len(tensors)
    )
    return [
        (torch.zeros_like(like) if actual is None else actual, torch.zeros_like(like) if other is None else other)
        for like, actual, other in zip(inputs, [grad_x, *grad_initial, *grad_parameters], gradients)
    ]


def assert_close(actual, other, tolerance):
    finite = other.isfinite()
    assert torch.equal(actual.isfinite(), finite)
    if finite.any():
        error = (actual[finite] - other[finite]).abs().max().item()
        assert error <= tolerance * max(1.0, other[finite].abs().max().item())


CASES = [
    pytest.param(function, options, id="-".join([function.__name__, *map(str, options.values())]))
    for function in equations.NEURONS
    for options in _generator.variants(function, equations.OPTIONS)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("function", "options"), CASES)
def test_every_neurons_adjoint_is_autograds(function, options, dtype):
    """Gradients of input and states are equal bit by bit: operations and order of additions are autograd's."""
    torch.manual_seed(7)
    names, parameters, _ = _generator.signature(function)
    x = torch.randn(6, 2, 9, dtype=dtype) * 1.5
    initial = [torch.randn(2, 9, dtype=dtype) for _ in names]
    values = {name: torch.linspace(0.3, 0.9, 9, dtype=dtype) for name in parameters}
    if function is equations.alpha:
        values["alpha"] = values["beta"] * 0.5 + 0.5
    results = check(function, options, x, initial, values)
    for number, (actual, other) in enumerate(results):
        if number <= len(names):
            assert torch.equal(actual, other)
        else:
            assert_close(actual, other, 1e-5 if dtype == torch.float32 else 1e-12)


def functions_of(arguments, expressions):
    return [eval(f"lambda {arguments}: {expression}", {"torch": torch}) for expression in rows(expressions)]


UNARY = functions_of(
    "a",
    """
-a
abs(a)
a.tanh()
torch.sigmoid(a)
a.clamp(-1.5, 0.75)
a.masked_fill(a > 0.5, 0.25)
a.clamp(min=-0.5)
a.relu()
torch.exp(a.clamp(-3, 1))
(a.abs() + 0.25).log()
torch.sqrt(a.abs() + 0.25)
1 / (a * a + 0.5)
2 / (a.abs() + 0.5)
1 - a
a**2
a.tanh() ** 3
(a.abs() + 0.5) ** 0.5
(a.abs() + 0.5) ** -1.5
a.relu() ** 0 + a
a * 0.3 + 0.1
a / 3
torch.sin(a) * a.cos()
a.sign() * 0.5
a.detach()
(a > 0.1).float() * 0.5
""",
)
BINARY = functions_of(
    "a, b",
    """
a + b
a - b
a * b
a / (b.abs() + 0.5)
torch.minimum(a, b)
torch.maximum(a, b)
torch.where(a > b, a * 0.5, b)
torch.where((a <= b) & ~(b >= 1), a, 0.25)
torch.where((a < 0) | (b < -1), 1.0, b)
(a > 0) * b
""",
)


@st.composite
def step_functions(draw):
    """Draw a random step function of one to three states and parameters, and its program."""
    states, parameters = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    first = 1 + states + parameters
    program = []
    for number in range(draw(st.integers(1, 10))):
        pick = st.integers(0, first + number - 1)
        if draw(st.booleans()):
            program.append((draw(st.integers(0, len(UNARY) - 1)), draw(pick)))
        else:
            program.append((draw(st.integers(0, len(BINARY) - 1)), draw(pick), draw(pick)))
    last = first + len(program) - 1
    results = [draw(st.integers(max(0, last - 4), last)) for _ in range(states)]
    fires, against = draw(st.integers(0, last)), draw(st.integers(0, last))

    def run(x, *before, spike, **named):
        pool = [x, *before, *named.values()]
        for operation, *operands in program:
            chosen = (UNARY if len(operands) == 1 else BINARY)[operation]
            pool.append(chosen(*(pool[operand] for operand in operands)))
        spk = spike(pool[fires] - 0.5 * pool[against])
        # Bounded by tanh for any step; the states depend on the spike, as with a reset.
        return (spk * pool[1 + states], *((pool[r] - spk * 0.5 + 0.1 * x).tanh() for r in results))

    arguments = ", ".join(f"s{i}" for i in range(states))
    keywords = ", ".join(f"p{i}" for i in range(parameters))
    passed = ", ".join(f"p{i}=p{i}" for i in range(parameters))
    source = f"def random_step(x, {arguments}, *, {keywords}, spike): return run(x, {arguments}, spike=spike, {passed})"
    scope = {"run": run}
    exec(source, scope)
    return scope["random_step"], states, parameters, program


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(step_functions(), st.integers(0, 2**31))
def test_random_steps_adjoint_is_autograds(drawn, seed):
    function, states, parameters, _ = drawn
    torch.manual_seed(seed)
    x = torch.randn(3, 5, dtype=torch.float64)
    initial = [torch.randn(5, dtype=torch.float64) for _ in range(states)]
    values = {f"p{i}": torch.randn(5, dtype=torch.float64) for i in range(parameters)}
    for actual, other in check(function, None, x, initial, values):
        assert_close(actual, other, 1e-10)


@snn.neuron(states=("mem", "adapt"), parameters={"beta": 0.9, "rho": 0.8, "strength": 0.3, "threshold": 1.0})
def Rising(x, mem, adapt, *, beta, rho, strength, threshold, spike):
    spk = spike(mem - threshold - strength * adapt)
    rises = torch.where(rho < beta, torch.sigmoid(mem), mem).clamp(max=0.9)
    return spk, beta * mem * (1 - spk) + x, torch.where(adapt > 2, adapt / 2, rho * adapt) + spk * rises**2


@pytest.mark.slow
@pytest.mark.skipif(host.library is None or not shutil.which("g++"), reason="no native library, or no g++")
def test_operations_that_no_neuron_of_ours_has(monkeypatch):
    """Compiled for a CPU they equal the loop; exp is our own."""
    calls, run = [], kernels.forward
    monkeypatch.setattr(kernels, "forward", lambda *arguments: calls.append(1) or run(*arguments))
    torch.manual_seed(0)
    layer = Rising(spike_grad=surrogate.atan(2.0)).double()
    x = torch.randn(40, 2, 19, dtype=torch.float64) * 1.5
    states, parameters, results = [torch.zeros_like(x[0])] * 2, dict(layer.named_buffers()), []
    for sequence in (layer.sequence, lambda x: looped(Rising.step, x, states, parameters)):
        leaf = x.clone().requires_grad_()
        out = sequence(leaf)
        results.append([*out, torch.autograd.grad(sum((part * x).sum() for part in out), leaf)[0]])
    assert calls == [1]
    assert 0.02 < results[0][0].mean() < 0.98
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def refused(function):
    with pytest.raises(TraceError) as caught:
        Step(function)
    return str(caught.value)


def test_a_condition_on_values_is_refused():
    def step(x, mem, *, beta, spike):
        if mem > 1:
            mem = mem - 1
        return spike(mem - 1), beta * mem + x

    message = refused(step)
    assert "`if`" in message
    assert "test_generator.py" in message
    assert "if mem > 1:" in message


@each_row("""
mem.mean() | mean() goes over several neurons
torch.sum(mem) | sum() goes over several neurons
mem @ beta | product of matrices
torch.matmul(mem, beta) | product of matrices
mem.add_(x) | in place
mem[0] | single elements
mem.reshape(-1) | shape
torch.cat([mem, x]) | shape
mem * torch.ones(3) | from outside the step
torch.ones(3) * mem | from outside the step
math.exp(mem) | number out of a tensor
mem.item() | number out of a tensor
torch.erfinv(mem) | not one of the operations
mem ** x | exponent
(mem > 1) + x | comparison
mem.clamp(x, 1) | bounds
torch.where(mem, x, 1) | condition
mem.float() | precision
mem.to(torch.int32) | precision
(mem > 1).with_gradient((mem,), lambda g: (g,)) | must be a number for each neuron
(2 * beta).with_gradient((beta,), lambda g: (g,)) | must be a number for each neuron
mem > 1 | got a comparison
0.5 | got a float
""")
def test_what_cannot_be_a_kernel_is_refused(row):
    expression, words = row.split(" | ")
    scope = {"torch": torch, "math": math}
    exec(f"def step(x, mem, *, beta, spike):\n    return spike(mem - 1), {expression}", scope)
    message = refused(scope["step"])
    assert words in message
    assert "step" in message


def test_augmented_assignment_is_refused():
    """It would write into the caller's state."""

    def step(x, mem, *, beta, spike):
        mem += x
        return spike(mem - 1), mem

    assert "in place" in refused(step)
    assert "mem += x" in refused(step)


def test_the_number_of_results_is_checked():
    def step(x, syn, mem, *, beta, spike):
        return spike(mem - 1), beta * mem + x

    assert "must return 3 values, spk, syn, mem; it returned 2" in refused(step)


def test_signatures_are_checked():
    assert "no keyword `spike`" in refused(lambda x, mem, *, beta: (mem, mem))
    assert "(x, states...," in refused(lambda x, *, spike: x)
    assert "*states" in refused(lambda x, *states, spike: x)


def test_it_needs_no_torch(repository):
    """pip's isolated build has no PyTorch."""
    code = (
        "import sys, importlib.util as u; sys.path.insert(0, 'snnipu'); sys.modules['torch'] = None\n"
        "s = u.spec_from_file_location('equations', 'snnipu/equations.py'); e = u.module_from_spec(s)\n"
        "s.loader.exec_module(e); import _generator as g\n"
        "print(len([g.Adjoint(g.Step(f, o)) for f in e.NEURONS for o in g.variants(f, e.OPTIONS)]))"
    )
    assert int(python("-c", code, cwd=repository).stdout) == len(CASES)


def test_a_neuron_is_printed_the_same_every_time():
    """The text identifies the compiled library of a custom neuron."""
    for function in equations.NEURONS:
        first, other = (_generator.neuron(function, equations.OPTIONS) for _ in range(2))
        for step in other.steps:
            Adjoint(step)
        for show in (_generator.print_neurons, _generator.print_triton):
            assert show([first]) == show([first]) == show([other])


def test_recording_takes_time_in_proportion_to_the_operations():
    """As nested text, the result of this step would have 2**200 inputs."""

    def doubling(x, mem, *, spike):
        for _ in range(200):
            mem = mem + mem
        return spike(mem), mem + x

    assert len(_generator.neuron(doubling).steps) == 1
