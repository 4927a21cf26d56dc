"""Neurons compiled by themselves, from the headers and what the generator prints, and called with tensors."""

import ctypes
import subprocess
from ctypes import c_int64

import torch

from snnipu import equations
from snnipu._generator import SURROGATES_HEADER, print_neurons, print_surrogates
from snnipu.backends.neurons import Call

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLAGS = ["-std=c++17", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-psabi"]


def compute(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def compiled(neurons, folder, csrc, flags):
    """A library of ``neurons``, as a user's own would be."""
    folder.mkdir(exist_ok=True)
    (folder / "neurons.hpp").write_text(print_neurons(neurons))
    (folder / SURROGATES_HEADER).write_text(print_surrogates(equations.SURROGATES))
    lines = ['#include "host/neuron.hpp"', '#include "neurons.hpp"', '#include "host/parallel.cpp"']
    (folder / "neurons.cpp").write_text("\n".join([*lines, "SNNIPU_NEURONS(SNNIPU_GENERATED_NEURONS)", ""]))
    command = ["g++", *FLAGS, *flags, f"-I{csrc}", f"-I{folder}", "-shared", str(folder / "neurons.cpp")]
    done = subprocess.run([*command, "-o", str(folder / "neurons.so"), "-ldl"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return Library(ctypes.CDLL(str(folder / "neurons.so")), neurons)


class Library:
    def __init__(self, library, neurons):
        self.library, self.neurons = library, neurons
        library.snnipu_neuron_call_size.restype = c_int64
        assert library.snnipu_neuron_call_size() == ctypes.sizeof(Call)

    def _call(self, number, variant, x, initial, parameters, num_steps, threads):
        call = Call(neuron=number, variant=variant, dtype=DTYPES.index(x.dtype), threads=threads)
        call.constant_input = num_steps is not None
        call.steps = len(x) if num_steps is None else num_steps
        call.elements = (x[0] if num_steps is None else x).numel()
        call.x = x.data_ptr()
        for s, state in enumerate(initial or []):
            call.initial[s] = state.data_ptr()
        for p, value in enumerate(parameters):
            call.parameters[p] = value.data_ptr()
            call.parameter_sizes[p] = value.numel()
        return call

    def forward(self, number, variant, x, initial, parameters, keep=True, num_steps=None, threads=1):
        """Spikes, states after each step (None for those that are not kept) and after the last."""
        neuron = self.neurons[number]
        call = self._call(number, variant, x, initial, parameters, num_steps, threads)
        shape = x.shape if num_steps is None else (num_steps, *x.shape)
        spk = torch.full(shape, float("nan"), dtype=x.dtype)
        states, finals = [], []
        call.spk = spk.data_ptr()
        for s, name in enumerate(neuron.states):
            kept = keep if isinstance(keep, bool) else name in keep
            states.append(torch.full(shape, float("nan"), dtype=x.dtype) if kept and name != "spk" else None)
            finals.append(torch.full(shape[1:], float("nan"), dtype=compute(x.dtype)))
            call.final[s] = finals[-1].data_ptr()
            call.states[s] = None if states[-1] is None else states[-1].data_ptr()
        assert self.library.snnipu_neuron_forward(ctypes.byref(call)) == 0
        return spk, states, finals

    def backward(
        self,
        number,
        variant,
        x,
        initial,
        parameters,
        kernel,
        grad_spk,
        grad_states,
        grad_final,
        *,
        states=None,
        learn=True,
        num_steps=None,
        threads=1,
    ):
        """Gradients of x, of the states before the first step and of the parameters."""
        call = self._call(number, variant, x, initial, parameters, num_steps, threads)
        call.surrogate, call.surrogate_a, call.surrogate_b = kernel
        constant = [grad is not None and grad.dim() == x[0:1].dim() - 1 for grad in (grad_spk, *grad_states)]
        if num_steps is not None:
            constant = [False] * len(constant)
        call.grad_constant = sum(1 << i for i, yes in enumerate(constant) if yes)
        call.grad_spk = None if grad_spk is None else grad_spk.data_ptr()
        c = compute(x.dtype)
        step_shape = x.shape[1:] if num_steps is None else x.shape
        grad_x = torch.full(x.shape, float("nan"), dtype=x.dtype)
        grad_initial = [torch.full(step_shape, float("nan"), dtype=c) for _ in self.neurons[number].states]
        wanted = [learn if isinstance(learn, bool) else p in learn for p in range(len(parameters))]
        grad_parameters = [torch.full_like(v, float("nan")) if w else None for v, w in zip(parameters, wanted)]
        call.grad_x = grad_x.data_ptr()
        for s, tensor in enumerate(grad_initial):
            call.grad_initial[s] = tensor.data_ptr()
            for name, tensors in (("grad_states", grad_states), ("grad_final", grad_final), ("states", states or [])):
                if s < len(tensors) and tensors[s] is not None:
                    getattr(call, name)[s] = tensors[s].data_ptr()
        for p, tensor in enumerate(grad_parameters):
            call.grad_parameters[p] = None if tensor is None else tensor.data_ptr()
        assert self.library.snnipu_neuron_backward(ctypes.byref(call)) == 0
        return grad_x, grad_initial, grad_parameters
