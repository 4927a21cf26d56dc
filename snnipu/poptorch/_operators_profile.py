"""The estimated cost of a network's operators on IPUs, without running them.

A module runs once with empty spikes of the right shapes. The IPU model compiles each operator and gradient for the
whole machine and counts it; zeros replace its outputs.
"""

import copy
import math
from typing import Any, List, Sequence, Tuple

import torch
from torch import nn

from snnipu.ipu.model import DTYPES, IpuModel, IpuModelTarget, Program
from snnipu.ipu.network import HEADROOM
from snnipu.ipu.operators import OperatorFigures, OperatorsProfile, runs_by_operators
from snnipu.neurons import DelayLinear, SparseConv2d, SparseLinear, SparseNetwork
from snnipu.neurons.sparse_conv import ConvolutionalNeurons
from snnipu.neurons.sparse_leaky import FullyConnectedNeurons
from snnipu.online import Online
from snnipu.ops._maps import Geometry
from snnipu.planning.convolution import plan_convolution
from snnipu.planning.targets import target_named
from snnipu.poptorch._ipu_model import IpuModelRunner
from snnipu.poptorch._tracing import tracing
from snnipu.spikes import SparseSpikes


class _CountedProgram:
    """A compiled program that returns zeros instead of running."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        # All elements share one zero in memory, since no code writes to the outputs.
        return [torch.zeros((), dtype=DTYPES[spec.type]).expand(spec.shape) for spec in self._program.outputs]


class _CountingModel(IpuModel):
    """An IPU model that compiles and counts programs, and does not run them."""

    def __init__(self, target: IpuModelTarget) -> None:
        super().__init__(target)
        self.compiled: List[Program] = []

    def compile(self, *arguments: Any, **options: Any) -> Any:
        program = super().compile(*arguments, **options)
        self.compiled.append(program)
        return _CountedProgram(program)

    def figures(self, training: bool) -> Tuple[OperatorFigures, ...]:
        machine = self.machine()
        figures = []
        for program in self.compiled:
            counts = program.estimate()
            # A gradient's inputs begin with the inputs of its operator.
            shapes, attributes = [spec.shape for spec in program.key.inputs], dict(program.key.attributes)
            plan = None
            if program.key.name == "SparseConv2d":
                geometry, dtype = Geometry(*attributes["geometry"]), program.key.inputs[3].type
                steps, batch, slots = shapes[0]
                plan = plan_convolution(
                    geometry,
                    slots,
                    steps * batch,
                    "float16" if dtype == "FLOAT16" else "float32",
                    training,
                    *machine,
                )
            figures.append(
                OperatorFigures(program.name, tuple(shapes[0]), counts["cycles"], counts["tile_memory_max_bytes"], plan)
            )
        return tuple(figures)


def _input_of(module: nn.Module, activity: float, steps: int, batch_size: int) -> SparseSpikes:
    """Return empty spikes for the first sparse layer; raise TypeError if its number of neurons is unknown."""
    on_spikes = (SparseConv2d, ConvolutionalNeurons, DelayLinear, FullyConnectedNeurons, SparseLinear)
    first = next(child for child in module.modules() if isinstance(child, on_spikes))
    shape: Tuple[int, ...]
    if not isinstance(first, (SparseConv2d, ConvolutionalNeurons)):
        shape = (first.in_features,)
    elif first.input_size is None:
        raise TypeError("model: the first layer on maps must have its input_size")
    else:
        shape = (first.in_channels, *first.input_size)
    neurons = math.prod(shape)
    caps = [child.max_input_spikes for child in module.modules() if isinstance(child, SparseNetwork)]
    expected = min(neurons, max(2, round(HEADROOM * activity * neurons)))
    slots = min(neurons, caps[0]) if caps and caps[0] is not None else expected
    values = torch.zeros(steps, batch_size, slots)
    counts = torch.zeros(steps, batch_size, 2, dtype=torch.int32)
    spikes = SparseSpikes(values.int(), values, counts, neurons)
    return spikes if len(shape) == 1 else spikes.with_maps(shape)


def profile_operators(
    module: nn.Module,
    activity: float = 0.02,
    *,
    batch_size: int = 48,
    steps: int = 100,
    dtype: str = "float32",
    training: bool = True,
    target: str = "mk2",
    ipus: int = 1,
) -> OperatorsProfile:
    """Count the operators of a network with layers on maps or with delays, or of an :class:`Online` module.

    Args:
        module: a network of sparse layers, of which a first layer on maps has its ``input_size``. A layer without
            ``max_spikes`` has a slot for every neuron, as on an IPU. Or an :class:`Online` after ``prepare(chunk)``:
            one chunk is counted, and the chunk gives the batch size.
        activity: share of the input's neurons that spike in a step. An input without a cap has twice as many slots;
            half of all slots are taken to hold a spike.
        batch_size, steps, dtype, training: as in :class:`snnipu.ipu.NetworkSpec`.
        target, ipus: as in :func:`snnipu.ipu.plan`.

    Raises:
        TypeError: the module has neither layers on maps nor with delays, a first layer on maps has no ``input_size``,
            or an ``Online`` is not prepared.
        IpuModelError: the library of the IPU model is missing, or it refuses an operator for another reason than
            memory.
    """
    chunk, state_bytes = None, 0
    inputs: Any
    if isinstance(module, Online):
        if module.chunk_shape is None:
            raise TypeError("model: an Online must be prepared, by prepare(chunk), before it can be counted")
        inputs = torch.zeros(module.chunk_shape, dtype=module.chunk_dtype)
        chunk_dtype = str(module.chunk_dtype).replace("torch.", "")
        if dtype not in (chunk_dtype, "float32"):
            raise TypeError(f"model: its chunks are {chunk_dtype}, as given to prepare(), not {dtype}")
        dtype = chunk_dtype
        chunk, batch_size = module.chunk_shape[:2]
        state_bytes = sum(buffer.numel() * buffer.element_size() for _, buffer in module.named_buffers(recurse=False))
    elif runs_by_operators(module):
        inputs = _input_of(module, activity, steps, batch_size)
    else:
        raise TypeError("model: expected layers on maps or with delays, and found none")
    options = (("tileMemory", "off"), ("occupancy", str(1 / HEADROOM)))
    model = _CountingModel(IpuModelTarget(target, 0, ipus, options))
    copied = copy.deepcopy(module)
    runner = IpuModelRunner(copied)
    runner.model = model
    if dtype == "float16" and chunk is None:
        for name, parameter in copied.named_parameters():
            parameter.data = parameter.data.half() if name.endswith("weight") else parameter.data
    with runner.running(), tracing(training), torch.set_grad_enabled(training):
        out = copied(inputs)
        if training:
            values = out.values if isinstance(out, SparseSpikes) else out[0] if isinstance(out, tuple) else out
            parameters = [parameter for parameter in copied.parameters() if parameter.requires_grad]
            torch.autograd.grad(values.sum(), parameters, allow_unused=True)
    machine = (target_named(target), ipus)
    return OperatorsProfile(batch_size, steps, dtype, training, *machine, model.figures(training), chunk, state_bytes)
