"""The IPU model: runs PopART operators of ``ai.snnipu`` on this machine, tile by tile, and counts their cost.

The library ``libsnnipu-ipu-model.so`` (``csrc/ipu_model``) compiles an operator, or its gradient, for a target, runs
it, and reports tile memory, cycles and exchange. It does not use PyTorch and is loaded with ctypes on first use.

Environment: ``SNNIPU_IPU_MODEL_TARGET`` is the default target: ``mk2``, ``bow:16`` (16 tiles per IPU) or
``mk2:1472:2`` (2 IPUs). ``SNNIPU_NATIVE_DIR`` is the folder of the library.
"""

import ctypes
import json
import os
import sys
import threading
from collections import OrderedDict
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_void_p
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu._pointers import pointer, pointer_to_read
from snnipu._version import __version__
from snnipu.backends import libraries
from snnipu.ops._derivative import once_differentiable
from snnipu.planning.targets import Target, target_named

LIBRARY = "libsnnipu-ipu-model.so"
BUILD_HINT = (
    "it is built with the other native libraries, by a C++17 compiler (GCC or Clang): "
    "`SNNIPU_REQUIRE_NATIVE=1 pip install .` in a source tree, or `python setup.py build_ext --inplace`"
)
# PopART's names of types.
TYPES: Dict[torch.dtype, str] = {
    torch.float32: "FLOAT",
    torch.float16: "FLOAT16",
    torch.int32: "INT32",
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.int8: "INT8",
}
# Conversions of inputs, as PopTorch does them.
CONVERSIONS = {torch.float64: torch.float32, torch.int64: torch.int32}
DTYPES = {name: dtype for dtype, name in TYPES.items()}
CACHED_PROGRAMS = 64
GRAD_OUT, IN, OUT = range(3)


class IpuModelError(RuntimeError):
    """The model refused an operator, or failed to run it.

    Attributes:
        kind: the name of the SDK's exception, such as ``graph_memory_allocation_error``; empty for other errors.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class IpuModelUnavailable(IpuModelError):
    """The library is missing, does not load, or is of another version."""


@dataclass(frozen=True)
class IpuModelTarget:
    """The machine that the model simulates.

    Args:
        arch: ``mk1``, ``mk2`` or ``bow``.
        tiles_per_ipu: tiles of an IPU; 0: all. A small number makes tests fast.
        ipus: the IPUs that an operator may use, up to 64.
        options: options of the model, as pairs: ``("workerOrder", "ascending" | "descending" | "shuffled:SEED")``,
            ``("threads", "2")``, or ``("tileMemory", "off")`` to accept operators that exceed tile memory.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.
    """

    arch: str = "mk2"
    tiles_per_ipu: int = 0
    ipus: int = 1
    options: Tuple[Tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        machine = target_named(self.arch)
        for name, least, most in (("tiles_per_ipu", 0, machine.tiles_per_ipu), ("ipus", 1, 64)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if not least <= value <= most:
                raise ValueError(f"{name} must be from {least} to {most}, got {value}")
        for pair in self.options:
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
                raise TypeError(f"options must be pairs of str, got {pair!r}")

    @classmethod
    def from_text(cls, text: str) -> "IpuModelTarget":
        """Return the target of ``arch``, ``arch:tiles`` or ``arch:tiles:ipus``; raise ValueError for other text."""
        parts = text.split(":")
        try:
            numbers = [int(part) for part in parts[1:]]
        except ValueError:
            numbers = []
        if len(parts) > 3 or len(numbers) != len(parts) - 1:
            raise ValueError(f"expected arch, arch:tiles or arch:tiles:ipus, such as mk2:16:1, got {text!r}")
        tiles, ipus = [*numbers, *(0, 1)[len(numbers) :]]
        return cls(parts[0], tiles, ipus)

    @classmethod
    def default(cls) -> "IpuModelTarget":
        """Return the target of ``SNNIPU_IPU_MODEL_TARGET``, or one whole Mk2."""
        text = os.environ.get("SNNIPU_IPU_MODEL_TARGET")
        if not text:
            return cls()
        try:
            return cls.from_text(text)
        except ValueError as error:
            raise ValueError(f"SNNIPU_IPU_MODEL_TARGET: {error}") from None


# ---- the library

# Arguments of the functions, by the type of their results.
_SIGNATURES: Dict[Any, Dict[str, List[Any]]] = {
    c_char_p: {
        "version": [],
        "error": [],
        "operators": [],
        "output_type": [c_void_p, c_int],
        "report": [c_void_p],
        "estimate": [c_void_p],
    },
    c_void_p: {
        "request_new": [c_char_p, c_char_p, c_int],
    },
    None: {
        "request_free": [c_void_p],
        "program_free": [c_void_p],
    },
    c_int: {
        "request_input": [c_void_p, c_char_p, POINTER(c_int64), c_int],
        "request_outputs": [c_void_p, c_int],
        "request_int": [c_void_p, c_char_p, c_int64],
        "request_float": [c_void_p, c_char_p, c_double],
        "request_string": [c_void_p, c_char_p, c_char_p],
        "request_ints": [c_void_p, c_char_p, POINTER(c_int64), c_int],
        "request_floats": [c_void_p, c_char_p, POINTER(c_double), c_int],
        "request_target": [c_void_p, c_char_p, c_int, c_int],
        "request_option": [c_void_p, c_char_p, c_char_p],
        "request_gradient": [c_void_p, POINTER(c_int), c_int],
        "compile": [c_void_p, POINTER(c_void_p)],
        "outputs": [c_void_p],
        "output_rank": [c_void_p, c_int],
        "inputs": [c_void_p],
        "input_source": [c_void_p, c_int, POINTER(c_int), POINTER(c_int)],
        "gradient_target": [c_void_p, c_int],
        "run": [c_void_p, POINTER(c_void_p), POINTER(c_void_p)],
    },
    POINTER(c_int64): {
        "output_shape": [c_void_p, c_int],
    },
}


def library_path() -> Path:
    """Return the path at which the library is expected."""
    return libraries.native_folder() / LIBRARY


class Library:
    """The C interface of ``csrc/ipu_model/snnipu_ipu_model.h``; its functions without the prefix ``snnipu_ipu_``.

    Args:
        path: the library; None: the library of this package.

    Raises:
        IpuModelUnavailable: the library is missing, does not load, or is of another version.
    """

    def __init__(self, path: Optional[Path] = None) -> None:
        problem = libraries.find().problem if path is None else None
        path = library_path() if path is None else path
        if not path.is_file():
            if not sys.platform.startswith("linux"):
                raise IpuModelUnavailable("the IPU model runs on Linux only, as the Poplar SDK does")
            raise IpuModelUnavailable(f"the IPU model needs {path}, which is not there: {BUILD_HINT}")
        if problem is not None:
            raise IpuModelUnavailable(problem)
        try:
            self._library = ctypes.CDLL(str(path))
            for result, functions in _SIGNATURES.items():
                for name, arguments in functions.items():
                    function = getattr(self._library, f"snnipu_ipu_{name}")
                    function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise IpuModelUnavailable(f"{path} cannot be loaded: {error}; {BUILD_HINT}") from None
        version = self.version().decode()
        if version != __version__:
            raise IpuModelUnavailable(f"{path} is of version {version}, the package of {__version__}: {BUILD_HINT}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, f"snnipu_ipu_{name}")


_library: Any = None
_library_lock = threading.Lock()


def library() -> Any:
    """Return the library, loaded on first use; raise :class:`IpuModelUnavailable` if that fails."""
    global _library
    with _library_lock:
        if _library is None:
            _library = Library()
        return _library


def available() -> bool:
    """Return True if the library loads."""
    return unavailable_reason() is None


def unavailable_reason() -> Optional[str]:
    """Return the reason why the model cannot be used, or None if it can."""
    try:
        library()
    except IpuModelUnavailable as error:
        return str(error)
    return None


# ---- programs


class TensorType(NamedTuple):
    """The type, by PopART's name, and shape of an input or output."""

    type: str
    shape: Tuple[int, ...]


class InputSource(NamedTuple):
    """The operator's tensor that is an input of its gradient: ``GRAD_OUT``, ``IN`` or ``OUT``, and the index."""

    kind: int
    place: int


class _ProgramKey(NamedTuple):
    domain: str
    name: str
    version: int
    inputs: Tuple[TensorType, ...]
    attributes: Tuple[Tuple[str, Any], ...]
    text: str  # of the attributes: 1.0 == 1 in Python, and these attributes differ
    target: IpuModelTarget
    gradient: Optional[Tuple[int, ...]]  # the outputs that have a gradient; None: the operator, not its gradient


def tensor_type(tensor: torch.Tensor, name: str) -> TensorType:
    """Return the type of an input; ``name`` is its name in errors. Raise TypeError for a type that IPUs lack."""
    dtype = CONVERSIONS.get(tensor.dtype, tensor.dtype)
    if dtype not in TYPES:
        raise TypeError(f"{name}: {tensor.dtype} has no equivalent on an IPU; it takes {', '.join(map(str, TYPES))}")
    return TensorType(TYPES[dtype], tuple(tensor.shape))


# Names of a tile's largest variables, and changes of the network that make them smaller.
_REMEDIES = (
    ("of all steps", "fewer time steps or samples at once"),
    ("spikes of all steps", "fewer slots (max_spikes)"),
    ("values of all steps", "fewer slots (max_spikes)"),
    ("kernels", "float16 weights, or fewer channels before the convolution"),
    ("weight", "float16 weights, or fewer neurons to a tile (a plan of snnipu.ipu.plan as ipu_plan)"),
    ("partial", "fewer slots (max_spikes) or samples at once"),
)


def _memory_remedy(message: str) -> str:
    """Return the changes that make the fullest tile less full, by the names of its largest variables."""
    _, _, largest = message.partition("its largest: ")
    remedies = [remedy for words, remedy in _REMEDIES if words in largest]
    return f". In the model: {'; '.join(dict.fromkeys(remedies))}" if remedies else ""


class Program:
    """A compiled operator, or its gradient.

    Attributes:
        key: the operator, its input types and attributes, and the target.
        sources: the origin of each input, an :class:`InputSource`.
        outputs: the :class:`TensorType` of each output.
        targets: of a gradient, the operator's input to which each output belongs.
    """

    def __init__(self, lib: Any, key: _ProgramKey, forward: Sequence[TensorType] = ()) -> None:
        self._lib = lib
        self.key = key
        # A gradient's operator has these output types.
        self._forward_outputs = forward
        self._lock = threading.Lock()
        self._handle: Optional[int] = None
        self._handle = self._compile()
        self.sources = [self._source(index) for index in range(lib.inputs(self._handle))]
        self.outputs = [self._output(index) for index in range(lib.outputs(self._handle))]
        self.targets = [int(lib.gradient_target(self._handle, index)) for index in range(len(self.outputs))]

    @property
    def name(self) -> str:
        """``NeuronSequence``, or ``NeuronSequence (gradient)``."""
        return self.key.name + (" (gradient)" if self.key.gradient is not None else "")

    def _check(self, status: int) -> None:
        if status:
            text = (self._lib.error() or b"unknown error").decode(errors="replace")
            kind, colon, message = text.partition(": ")
            has_kind = bool(colon) and kind.isidentifier()
            if kind == "graph_memory_allocation_error":
                text += _memory_remedy(text)
            raise IpuModelError(f"IPU model, {self.name}: {text}", kind if has_kind and message else "")

    def _compile(self) -> int:
        lib, key = self._lib, self.key
        request = lib.request_new(key.domain.encode(), key.name.encode(), key.version)
        if not request:
            self._check(1)
        try:
            for spec in key.inputs:
                shape = (c_int64 * len(spec.shape))(*spec.shape)
                self._check(lib.request_input(request, spec.type.encode(), shape, len(spec.shape)))
            for name, value in key.attributes:
                self._attribute(request, name.encode(), value)
            target = key.target
            self._check(lib.request_target(request, target.arch.encode(), target.tiles_per_ipu, target.ipus))
            for name, value in target.options:
                self._check(lib.request_option(request, name.encode(), value.encode()))
            if key.gradient is not None:
                outputs = (c_int * len(key.gradient))(*key.gradient)
                self._check(lib.request_gradient(request, outputs, len(key.gradient)))
            handle = c_void_p()
            self._check(lib.compile(request, ctypes.byref(handle)))
            assert handle.value is not None
            return handle.value
        finally:
            if request:
                lib.request_free(request)

    def _attribute(self, request: Any, name: bytes, value: Any) -> None:
        lib = self._lib
        if isinstance(value, tuple):
            if value and all(isinstance(element, int) for element in value):
                self._check(lib.request_ints(request, name, (c_int64 * len(value))(*value), len(value)))
            elif value and all(isinstance(element, float) for element in value):
                self._check(lib.request_floats(request, name, (c_double * len(value))(*value), len(value)))
            else:
                raise TypeError(f"attribute {name.decode()!r}: the model takes lists of int or of float, got {value!r}")
        elif isinstance(value, int):  # or bool
            self._check(lib.request_int(request, name, int(value)))
        elif isinstance(value, float):
            self._check(lib.request_float(request, name, value))
        else:
            self._check(lib.request_string(request, name, str(value).encode()))

    def _source(self, index: int) -> InputSource:
        kind, place = c_int(), c_int()
        self._check(self._lib.input_source(self._handle, index, ctypes.byref(kind), ctypes.byref(place)))
        return InputSource(kind.value, place.value)

    def _output(self, index: int) -> TensorType:
        rank = self._lib.output_rank(self._handle, index)
        shape = self._lib.output_shape(self._handle, index)
        name = self._lib.output_type(self._handle, index).decode()
        if name not in DTYPES:
            raise IpuModelError(f"IPU model, {self.name}: output {index} is of type {name}, which PyTorch lacks")
        return TensorType(name, tuple(shape[axis] for axis in range(rank)))

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Run the program and return its outputs.

        Args:
            inputs: tensors on the CPU, in the order of :attr:`sources`; their values are copied.

        Raises:
            TypeError, ValueError: an input differs in type or shape from the input the program was compiled for.
        """
        if len(inputs) != len(self.sources):
            raise ValueError(f"{self.name} takes {len(self.sources)} inputs, got {len(inputs)}")
        converted: List[torch.Tensor] = []
        sources = (c_void_p * max(len(inputs), 1))()
        for number, (tensor, source) in enumerate(zip(inputs, self.sources)):
            name = f"{self.name}: input {number}"
            if tensor.device.type != "cpu":
                raise ValueError(f"{name} must be on the CPU, got {tensor.device}")
            spec = (self.key.inputs if source.kind == IN else self._forward_outputs)[source.place]
            converted.append(tensor.detach().to(CONVERSIONS.get(tensor.dtype, tensor.dtype)))
            sources[number] = pointer_to_read(name, converted[-1], DTYPES[spec.type], spec.shape, converted)
        outputs = [torch.empty(spec.shape, dtype=DTYPES[spec.type], device="cpu") for spec in self.outputs]
        results = (c_void_p * max(len(outputs), 1))()
        for number, (tensor, spec) in enumerate(zip(outputs, self.outputs)):
            results[number] = pointer(f"{self.name}: output {number}", tensor, DTYPES[spec.type], spec.shape)
        with self._lock:
            self._check(self._lib.run(self._handle, sources, results))
        return outputs

    def _json(self, function: str) -> Dict[str, Any]:
        with self._lock:
            text = getattr(self._lib, function)(self._handle)
            if text is None:
                self._check(1)
            document: Dict[str, Any] = json.loads(text.decode())
            return document

    def report(self) -> Dict[str, Any]:
        """Return the counts of all runs so far: tile memory, cycles of each step, exchange. They are not measured."""
        return self._json("report")

    def estimate(self) -> Dict[str, Any]:
        """Return the counts of one run, without running the program."""
        return self._json("estimate")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.program_free(self._handle)
            self._handle = None


class IpuModel:
    """Operators on one simulated machine. It compiles a program once per operator, shapes, types and attributes.

    .. code-block:: python

        model = IpuModel(IpuModelTarget("mk2", tiles_per_ipu=16))
        (spk,) = model.apply("SurrogateSpike", [u], attributes)   # differentiable
        for program in model.programs():
            print(program.name, program.report())

    Args:
        target: the machine; None: :meth:`IpuModelTarget.default`.
        lib: the C interface; None: the library of this package, loaded on first use.
    """

    def __init__(self, target: Optional[IpuModelTarget] = None, lib: Any = None) -> None:
        self.target = IpuModelTarget.default() if target is None else target
        self._lib = lib
        self._programs: OrderedDict[_ProgramKey, Program] = OrderedDict()
        self._lock = threading.Lock()
        self._operators: Optional[Dict[Tuple[str, str, int], Dict[str, Any]]] = None

    @property
    def lib(self) -> Any:
        """The C interface, a :class:`Library`."""
        if self._lib is None:
            self._lib = library()
        return self._lib

    def operators(self) -> Dict[Tuple[str, str, int], Dict[str, Any]]:
        """Return the definition of each operator of the model, by (domain, name, version)."""
        if self._operators is None:
            definitions = json.loads(self.lib.operators().decode())
            self._operators = {(entry["domain"], entry["name"], entry["version"]): entry for entry in definitions}
        return self._operators

    def programs(self) -> List[Program]:
        """Return the compiled programs, least recently used first."""
        with self._lock:
            return list(self._programs.values())

    def machine(self) -> Tuple[Target, int]:
        """Return the machine to plan for: the IPU, with the tiles of this target, and the number of IPUs."""
        named = target_named(self.target.arch)
        return replace(named, tiles_per_ipu=self.target.tiles_per_ipu or named.tiles_per_ipu), self.target.ipus

    def compile(
        self,
        name: str,
        inputs: Sequence[TensorType],
        attributes: Dict[str, Any],
        domain: str = "ai.snnipu",
        version: int = 1,
        gradient: Optional[Sequence[int]] = None,
    ) -> Program:
        """Return the program of an operator or its gradient, compiled once.

        Args:
            name, domain, version: the operator, as registered with PopART.
            inputs: the types of the operator's inputs.
            attributes: the operator's attributes.
            gradient: the outputs that have a gradient, for the gradient's program; None: the operator's program.

        Raises:
            IpuModelUnavailable: the library cannot be used.
            IpuModelError: the SDK would refuse the operator, or it exceeds tile memory; see ``kind``.
        """
        pairs = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in sorted(attributes.items()))
        key = _ProgramKey(
            domain,
            name,
            version,
            tuple(inputs),
            pairs,
            repr(pairs),
            self.target,
            None if gradient is None else tuple(gradient),
        )
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key]
        program = Program(self.lib, key, () if gradient is None else self._forward_outputs(key))
        with self._lock:
            self._programs[key] = program
            while len(self._programs) > CACHED_PROGRAMS:
                self._programs.popitem(last=False)
        return program

    def _forward_outputs(self, gradient: _ProgramKey) -> Sequence[TensorType]:
        """Return the output types of the operator of a gradient."""
        key = gradient._replace(gradient=None)
        with self._lock:
            program = self._programs.get(key)
        return (Program(self.lib, key) if program is None else program).outputs

    def apply(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        attributes: Dict[str, Any],
        domain: str = "ai.snnipu",
        version: int = 1,
    ) -> List[torch.Tensor]:
        """Run an operator and return its outputs, differentiable if PopART can differentiate the operator.

        As in PopTorch, doubles are computed in float and 64-bit integers in 32 bits. If all floating inputs are
        doubles, the outputs are converted to double.

        Args:
            name, domain, version: the operator, as registered with PopART.
            inputs: tensors on the CPU.
            attributes: the operator's attributes.
        """
        call = _ModelCall(self, name, domain, version, dict(attributes))
        return list(_OperatorFunction.apply(call, *inputs))

    def reports(self) -> List[Dict[str, Any]]:
        """Return each program's name, the shapes of its inputs, its target and its report."""
        return [
            {
                "operator": program.name,
                "inputs": [list(spec.shape) for spec in program.key.inputs],
                "target": program.key.target.arch,
                "report": program.report(),
            }
            for program in self.programs()
        ]


class _ModelCall(NamedTuple):
    model: IpuModel
    name: str
    domain: str
    version: int
    attributes: Dict[str, Any]

    def program(self, specs: Sequence[TensorType], gradient: Optional[Sequence[int]] = None) -> Program:
        return self.model.compile(self.name, specs, self.attributes, self.domain, self.version, gradient)


class _OperatorFunction(torch.autograd.Function):
    """The autograd function of an operator and its gradient."""

    @staticmethod
    def forward(ctx: Any, call: _ModelCall, *inputs: torch.Tensor) -> Tuple[torch.Tensor, ...]:  # type: ignore[override]
        specs = [tensor_type(tensor, f"{call.name}: input {number}") for number, tensor in enumerate(inputs)]
        program = call.program(specs)
        outputs = program.run([inputs[source.place] for source in program.sources])
        floats = {tensor.dtype for tensor in inputs if tensor.is_floating_point()}
        if floats == {torch.float64}:
            outputs = [out.double() if out.dtype == torch.float32 else out for out in outputs]
        ctx.call, ctx.specs = call, specs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(out for out in outputs if not out.is_floating_point()))
        ctx.save_for_backward(*inputs, *outputs)
        return tuple(outputs)

    @staticmethod
    @once_differentiable("PopART operators")
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Any, ...]:  # type: ignore[override]
        count = len(ctx.specs)
        inputs, outputs = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        result: List[Optional[torch.Tensor]] = [None] * count
        with_gradient = [index for index, grad in enumerate(grads) if grad is not None]
        if with_gradient:
            program = ctx.call.program(ctx.specs, with_gradient)
            tensors = {GRAD_OUT: grads, IN: inputs, OUT: outputs}
            gradient_inputs = [tensors[source.kind][source.place] for source in program.sources]
            for target, grad in zip(program.targets, program.run(gradient_inputs)):
                if inputs[target].is_floating_point() and ctx.needs_input_grad[target + 1]:
                    result[target] = grad.to(inputs[target].dtype)
        return (None, *result)
