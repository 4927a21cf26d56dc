"""What a network's operators would take on IPUs, without running them: those that its layers call, as the IPU model
compiles them.

A module runs once with spikes of the right shapes and no data: each operator, and each gradient, is compiled for the
whole machine and counted, and zeros go on in its place.
"""

import copy
import math
from typing import Any, List, Sequence, Tuple

import torch
from torch import nn

from snnipu.ipu.model import DTYPES, IpuModel, IpuModelTarget, Program
from snnipu.ipu.network import HEADROOM
from snnipu.ipu.operators import OperatorFigures, OperatorsProfile, runs_by_operators
from snnipu.neurons import DelayLinear, SparseConv2d, SparseConvLeaky, SparseLinear, SparseNetwork
from snnipu.neurons.sparse_leaky import FullyConnectedNeurons
from snnipu.online import Online
from snnipu.ops._maps import Geometry
from snnipu.planning.convolution import plan_convolution
from snnipu.planning.targets import target_named
from snnipu.poptorch._ipu_model import IpuModelRunner
from snnipu.poptorch._tracing import tracing
from snnipu.spikes import SparseSpikes


class _Counted:
    """A program that does not run: zeros stand for what it would return."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        # One element in all places: nobody writes to them.
        return [torch.zeros((), dtype=DTYPES[spec.type]).expand(spec.shape) for spec in self._program.outputs]


class _CountingModel(IpuModel):
    def __init__(self, target: IpuModelTarget) -> None:
        super().__init__(target)
        self.called: List[Program] = []

    def compile(self, *arguments: Any, **options: Any) -> Any:
        program = super().compile(*arguments, **options)
        self.called.append(program)
        return _Counted(program)

    def figures(self, training: bool) -> Tuple[OperatorFigures, ...]:
        machine = self.machine()
        found = []
        for program in self.called:
            counted = program.estimate()
            # The gradient's inputs begin with the operator's own.
            shapes, given = [spec.shape for spec in program.key.inputs], dict(program.key.attributes)
            plan = None
            if program.key.name == "SparseConv2d":
                geometry, dtype = Geometry(*given["geometry"]), program.key.inputs[3].type
                steps, batch, slots = shapes[0]
                plan = plan_convolution(
                    geometry,
                    slots,
                    steps * batch,
                    "float16" if dtype == "FLOAT16" else "float32",
                    training,
                    *machine,
                )
            found.append(
                OperatorFigures(
                    program.name, tuple(shapes[0]), counted["cycles"], counted["tile_memory_max_bytes"], plan
                )
            )
        return tuple(found)


def _input_of(module: nn.Module, activity: float, steps: int, batch_size: int) -> SparseSpikes:
    """Spikes for the first layer on spikes; raises TypeError where nobody knows of how many neurons."""
    on_spikes = (SparseConv2d, SparseConvLeaky, DelayLinear, FullyConnectedNeurons, SparseLinear)
    first = next(child for child in module.modules() if isinstance(child, on_spikes))
    shape: Tuple[int, ...]
    if not isinstance(first, (SparseConv2d, SparseConvLeaky)):
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
    """Count the operators that a network with layers on maps or with delays calls, for spikes of ``activity``, or
    :class:`Online`.

    Args:
        module: takes the spikes of its first layer; one on maps has its ``input_size``. Layers without ``max_spikes``
            have a slot for every neuron, as on an IPU. Or an :class:`Online` after ``prepare``: the chunk says how many
            samples there are, and is what is counted.
        activity: share of the input's neurons that spike in a step; the slots of the input are twice as many where it
            has no cap of its own, and of all slots half are taken to hold a spike.
        batch_size, steps, dtype, training: as in :class:`snnipu.ipu.NetworkSpec`.
        target, ipus: as in :func:`snnipu.ipu.plan`.

    Raises:
        TypeError: the module has no layer on maps and none with delays, or a first layer on maps no ``input_size``; an
            ``Online`` is not prepared.
        IpuModelError: there is no library of the model, or an operator is refused for another reason than memory.
    """
    chunk, kept = None, 0
    given: Any
    if isinstance(module, Online):
        if module.chunk_shape is None:
            raise TypeError("model: an Online is counted after its prepare(chunk)")
        given = torch.zeros(module.chunk_shape, dtype=module.chunk_dtype)
        own = str(module.chunk_dtype).replace("torch.", "")
        if dtype not in (own, "float32"):
            raise TypeError(f"model: its chunks are {own}, as prepare() was told, not {dtype}")
        dtype = own
        chunk, batch_size = module.chunk_shape[:2]
        kept = sum(buffer.numel() * buffer.element_size() for _, buffer in module.named_buffers(recurse=False))
    elif runs_by_operators(module):
        given = _input_of(module, activity, steps, batch_size)
    else:
        raise TypeError("model: it has no layers on maps, and none with delays")
    options = (("tileMemory", "off"), ("occupancy", str(1 / HEADROOM)))
    model = _CountingModel(IpuModelTarget(target, 0, ipus, options))
    counted = copy.deepcopy(module)
    runner = IpuModelRunner(counted)
    runner.model = model
    if dtype == "float16" and chunk is None:
        for name, parameter in counted.named_parameters():
            parameter.data = parameter.data.half() if name.endswith("weight") else parameter.data
    with runner.running(), tracing(training), torch.set_grad_enabled(training):
        out = counted(given)
        if training:
            made = out.values if isinstance(out, SparseSpikes) else out[0] if isinstance(out, tuple) else out
            wanted = [parameter for parameter in counted.parameters() if parameter.requires_grad]
            torch.autograd.grad(made.sum(), wanted, allow_unused=True)
    machine = (target_named(target), ipus)
    return OperatorsProfile(batch_size, steps, dtype, training, *machine, model.figures(training), chunk, kept)
