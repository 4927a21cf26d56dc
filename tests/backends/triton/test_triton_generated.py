"""Generated steps and adjoints in Triton's interpreter, against the same operations on tensors."""

import importlib.util
import linecache

import pytest
import torch

from snnipu import _generator, equations, surrogate
from snnipu._generator import print_triton

KERNEL = surrogate.Kernel.of(equations.leaky_step, 0.3)
SIZE = 32


def bent(x, mem, slow, *, tau, spike):
    u = torch.tanh(mem) + torch.sigmoid(slow).clamp(0.1, max=0.7) - 0.3
    spk = spike(u)
    slow = torch.maximum(slow / 3, torch.minimum(x, mem)) - slow.abs() * mem.sign()
    return (
        spk,
        torch.where(x > 0.2, (mem * mem + 1) ** 0.5, mem.relu()) * tau,
        1 / (slow**2 + 1) + torch.exp(-mem * mem),
    )


def with_a_gradient_of_its_own(x, mem, *, tau, spike):
    u = mem * tau + x
    spk = (u > 0.1).float().of((u, tau), lambda g: (g * (1 - u.tanh() * u.tanh()), g * x))
    return spk, u - spk * 0.3


_OTHERS = (bent, with_a_gradient_of_its_own)
NEURONS = [_generator.neuron(function, equations.OPTIONS) for function in (*equations.NEURONS, *_OTHERS)]


def kernel_text(neuron):
    """Two kernels that read arguments row by row and write results likewise."""
    s, p = len(neuron.states), len(neuron.parameters)
    step, adjoint = 1 + s + p, 1 + 2 * s + p + 1 + 2 * s

    def kernel(name, inputs, outputs, extra):
        rows = [f"    i{n} = tl.load(given + {n * SIZE} + offsets)" for n in range(inputs)]
        results = ", ".join(f"o{n}" for n in range(outputs))
        arguments = ", ".join(f"i{n}" for n in range(inputs))
        stores = [f"    tl.store(results + {n * SIZE} + offsets, o{n})" for n in range(outputs)]
        head = ["@triton.jit", f"def {name}_kernel(given, results, VARIANT: tl.constexpr):"]
        head += [f"    offsets = tl.arange(0, {SIZE})"]
        return "\n".join([*head, *rows, f"    {results} = {name}({arguments}, {extra})", *stores, "", ""])

    return kernel(f"{neuron.name}_step", step, 1 + s, "given, VARIANT") + kernel(
        f"{neuron.name}_adjoint", adjoint, 1 + s + p, f"given, {KERNEL.a}, 0.0, VARIANT, {KERNEL.id}, True"
    )


@pytest.fixture
def generated(interpreted, tmp_path):
    interpreted("neurons")
    file = tmp_path / "generated.py"
    file.write_text("\n".join([print_triton(NEURONS), *map(kernel_text, NEURONS)]))
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location("generated", str(file))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_and_adjoints(generated, dtype):
    functions = {
        "spike": lambda u: (u > 0).to(u.dtype),
        "surrogate": lambda u, g: surrogate.surrogate_gradient(KERNEL, u, g),
        "stored": lambda value: value,
    }
    torch.manual_seed(1)
    for neuron in NEURONS:
        for variant, step in enumerate(neuron.steps):
            adjoint = _generator.Adjoint(step)
            own = [neuron.parameters.index(_generator.expression(value)) for value in step.derived]
            parameters = torch.rand(len(neuron.parameters), SIZE, dtype=dtype)
            inputs = torch.randn(1 + len(neuron.states), SIZE, dtype=dtype) * 1.5
            given = dict(zip([id(step.x), *map(id, step.before)], inputs))
            given.update((id(value), parameters[place]) for value, place in zip(step.derived, own))
            expected = torch.stack(_generator.evaluate([step.spk, *step.after], given, **functions))
            found = torch.full_like(expected, float("nan"))
            kernel = getattr(generated, f"{neuron.name}_step_kernel")
            kernel[(1,)](torch.cat([inputs, parameters]), found, VARIANT=variant)
            # exp and tanh are not PyTorch's, and double is computed from float32 numbers nowhere.
            tolerance = 2e-6 if dtype == torch.float32 else 1e-9
            assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance), (neuron.name, variant)
            upstream = torch.randn(1 + 2 * len(neuron.states), SIZE, dtype=dtype)
            values = [adjoint.grad_spk, *adjoint.grad_after, *adjoint.seeds]
            given.update(zip(map(id, values), upstream))
            results = [adjoint.grad_x, *adjoint.grad_before, *adjoint.grad_derived]
            totals = _generator.evaluate(results, given, **functions)
            totals = [torch.zeros(SIZE, dtype=dtype) if total is None else total for total in totals]
            wanted = torch.zeros(1 + len(neuron.states) + len(neuron.parameters), SIZE, dtype=dtype)
            wanted[: 1 + len(neuron.states)] = torch.stack(totals[: 1 + len(neuron.states)])
            for place, total in zip(own, totals[1 + len(neuron.states) :]):
                wanted[1 + len(neuron.states) + place] = total
            found = torch.full_like(wanted, float("nan"))
            kernel = getattr(generated, f"{neuron.name}_adjoint_kernel")
            kernel[(1,)](torch.cat([inputs, expected[1:], parameters, upstream]), found, VARIANT=variant)
            assert torch.allclose(found, wanted, rtol=10 * tolerance, atol=tolerance), (neuron.name, variant)
