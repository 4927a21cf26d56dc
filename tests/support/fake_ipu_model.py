"""A stand-in for the IPU model's library in Python: its functions, three operators, and a log of the calls."""

import ctypes
import json

import torch

from snnipu import __version__
from snnipu.backends import popart
from snnipu.ipu.model import DTYPES, GRAD_OUT, IN
from snnipu.surrogate import Kernel, surrogate_gradient

NEURON_ATTRIBUTES = ["neuron", "variant", "states", "surrogate", "surrogate_a", "surrogate_b"]


def values(pointer, count):
    return [pointer[place] for place in range(count)]


class Request:
    def __init__(self, domain, name, version):
        self.domain, self.name, self.version = domain, name, version
        self.inputs, self.attributes, self.options = [], {}, {}
        self.target, self.gradient = None, None


class FakeLibrary:
    """``NeuronSequence`` of ``leaky``, ``SurrogateSpike``, ``Scale`` (a factor below 0 fails to compile, 13 to run)."""

    def __init__(self):
        self.requests, self.programs, self.log, self.freed = {}, {}, [], []
        self.failure = b""
        self.next = 1

    def _fail(self, text):
        self.failure = text.encode()
        return 1

    def _new(self, table, entry):
        self.next += 1
        table[self.next] = entry
        return self.next

    def version(self):
        return __version__.encode()

    def error(self):
        return self.failure

    def operators(self):
        surrogate = NEURON_ATTRIBUTES[3:]
        listed = [("Scale", ["factor"]), ("NeuronSequence", NEURON_ATTRIBUTES), ("SurrogateSpike", surrogate)]
        return json.dumps(
            [
                {"domain": "ai.snnipu", "name": name, "version": 1, "inputs": [], "outputs": [], "attributes": names}
                for name, names in listed
            ]
        ).encode()

    # ---- requests

    def request_new(self, domain, name, version):
        return self._new(self.requests, Request(domain.decode(), name.decode(), version))

    def request_free(self, request):
        del self.requests[request]

    def request_input(self, request, name, shape, rank):
        self.requests[request].inputs.append((name.decode(), tuple(values(shape, rank))))
        return 0

    def _attribute(self, request, name, value):
        self.requests[request].attributes[name.decode()] = value
        return 0

    request_int = request_float = _attribute

    def request_string(self, request, name, value):
        return self._attribute(request, name, value.decode())

    def request_ints(self, request, name, pointer, count):
        return self._attribute(request, name, values(pointer, count))

    request_floats = request_ints

    def request_target(self, request, arch, tiles, ipus):
        self.requests[request].target = (arch.decode(), tiles, ipus)
        return 0

    def request_option(self, request, name, value):
        self.requests[request].options[name.decode()] = value.decode()
        return 0

    def request_gradient(self, request, outputs, count):
        self.requests[request].gradient = values(outputs, count)
        return 0

    def compile(self, request, out):
        program = self.requests[request]
        if program.name not in ("Scale", "NeuronSequence", "SurrogateSpike"):
            return self._fail(f"popart_error: no operator {program.name}")
        if program.attributes.get("factor", 0) < 0:
            return self._fail("graph_memory_allocation_error: tile 3 holds 700 KiB of 624: use more tiles")
        self.log.append(("compile", program.name, program.gradient))
        out._obj.value = self._new(self.programs, program)
        return 0

    # ---- programs

    def program_free(self, program):
        self.freed.append(program)
        del self.programs[program]

    def _sources(self, program):
        request = self.programs[program]
        inputs = [(IN, place) for place in range(len(request.inputs))]
        return inputs if request.gradient is None else [(GRAD_OUT, place) for place in request.gradient] + inputs

    def inputs(self, program):
        return len(self._sources(program))

    def input_source(self, program, place, kind, index):
        kind._obj.value, index._obj.value = self._sources(program)[place]
        return 0

    def gradient_target(self, program, output):
        return -1 if self.programs[program].gradient is None else output

    def _outputs(self, program):
        request = self.programs[program]
        if request.gradient is not None:
            return request.inputs
        return [request.inputs[0]] * (1 + bin(request.attributes.get("states", 0)).count("1"))

    def outputs(self, program):
        return len(self._outputs(program))

    def output_rank(self, program, output):
        return len(self._outputs(program)[output][1])

    def output_shape(self, program, output):
        shape = self._outputs(program)[output][1]
        return (ctypes.c_int64 * len(shape))(*shape)

    def output_type(self, program, output):
        return self._outputs(program)[output][0].encode()

    def run(self, program, inputs, outputs):
        request = self.programs[program]
        if request.attributes.get("factor") == 13:
            return self._fail("poplar_runtime_error: unlucky")
        self.log.append(("run", request.name, request.gradient))
        types = [*([self._outputs(program)[0]] * len(request.gradient or [])), *request.inputs]
        if request.gradient is not None:
            types[: len(request.gradient)] = [request.inputs[0]] * len(request.gradient)
        tensors = [self._read(pointer, spec) for pointer, spec in zip(inputs, types)]
        for pointer, result in zip(outputs, self._compute(request, tensors)):
            result = result.contiguous()
            ctypes.memmove(pointer, result.data_ptr(), result.numel() * result.element_size())
        return 0

    @staticmethod
    def _read(pointer, spec):
        tensor = torch.empty(spec[1], dtype=DTYPES[spec[0]])
        ctypes.memmove(tensor.data_ptr(), pointer, tensor.numel() * tensor.element_size())
        return tensor

    @staticmethod
    def _compute(request, tensors):
        if request.name == "Scale":
            return [tensors[0] * request.attributes["factor"]]
        a = request.attributes
        if request.name == "SurrogateSpike":
            kernel = Kernel(a["surrogate"], a["surrogate_a"], a["surrogate_b"])
            return [
                (tensors[0] > 0).float()
                if request.gradient is None
                else surrogate_gradient(kernel, tensors[1], tensors[0])
            ]
        count = len(request.gradient or ())
        grads, inputs = tensors[:count], tensors[count:]
        inputs = [tensor.requires_grad_() for tensor in inputs]
        with torch.enable_grad():
            outputs = popart.neuron_sequence(inputs, a)
            if request.gradient is None:
                return [out.detach() for out in outputs]
            gradients = torch.autograd.grad(
                [outputs[place] for place in request.gradient], inputs, grads, allow_unused=True
            )
            return [torch.zeros_like(tensor) if grad is None else grad for tensor, grad in zip(inputs, gradients)]

    def report(self, program):
        return json.dumps({"name": self.programs[program].name, "cycles": 1000}).encode()

    estimate = report
