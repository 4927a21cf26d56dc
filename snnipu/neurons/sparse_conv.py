"""Event-driven layers on maps: ``snnipu.SparseConv2d``, ``snnipu.SparseConvLeaky`` and ``snnipu.SparsePool2d``."""

import math
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn

from snnipu import ops
from snnipu._checks import check_device, check_int
from snnipu.backends import popart
from snnipu.neurons._hooks import is_plain
from snnipu.neurons.multistep import Join, chunk_lengths
from snnipu.neurons.sparse_leaky import Parameter, SparseNeurons
from snnipu.neurons.sparse_linear import check_path, init_like_linear
from snnipu.ops._arguments import compute_dtype, is_compiling, is_direct
from snnipu.ops._break_even import CONVOLUTION, convolution_share, is_dense
from snnipu.ops._maps import Pair, Size, input_map_shape, pair, reached
from snnipu.ops._sparse_layers import delayed
from snnipu.ops._spike_gradient import fused
from snnipu.ops.dense_pool2d import max_pool2d
from snnipu.ops.dense_to_sparse import dense_argument
from snnipu.ops.sparse_conv2d import check_groups
from snnipu.ops.sparse_conv_lif_sequence import Maps, sparse_conv_lif_pool
from snnipu.ops.sparse_pool2d import mode_code
from snnipu.spikes import DenseOrSparse, SparseSpikes, SpikeTotals, check_map_shape
from snnipu.surrogate import SpikeGrad, atan

MapSize = Optional[Tuple[int, int]]


def padding_argument(padding: object, kernel: Size, dilation: Size, stride: Size) -> Size:
    """Return ``nn.Conv2d``'s padding, an int, a pair, ``"valid"`` or ``"same"``, as a pair of numbers."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        total = [dilation[axis] * (kernel[axis] - 1) for axis in (0, 1)]
        if stride != (1, 1):
            raise ValueError(f"padding='same' needs a stride of 1, got {stride}")
        if total[0] % 2 or total[1] % 2:
            raise ValueError(f"padding='same' would be uneven for kernel_size={kernel}: use a number")
        return total[0] // 2, total[1] // 2
    return pair("padding", padding, 0)


class _MapLayer(nn.Module):
    """The base class of convolutions. Constructor or first call fixes the size of the input's maps."""

    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    in_channels: int
    path: str

    def _set_maps(self, options: Mapping[str, Any]) -> None:
        """Set sizes, weight and bias from the constructor's arguments."""
        self.in_channels = check_int("in_channels", options["in_channels"])
        self.out_channels = check_int("out_channels", options["out_channels"])
        self.groups: int = options["groups"]
        check_groups(self.groups, self.in_channels, "in_channels")
        check_groups(self.groups, self.out_channels, "out_channels")
        self.kernel_size, self.stride, self.dilation = (
            pair(name, options[name], 1) for name in ("kernel_size", "stride", "dilation")
        )
        self.padding = padding_argument(options["padding"], self.kernel_size, self.dilation, self.stride)
        size = options["input_size"]
        self.input_size: MapSize = None if size is None else pair("input_size", size, 1)
        self.weight = nn.Parameter(torch.empty(self.out_channels, self.in_channels // self.groups, *self.kernel_size))
        self.bias = nn.Parameter(torch.empty(self.out_channels)) if options["bias"] else None

    def reset_parameters(self) -> None:
        """Draw the initial weights of ``nn.Conv2d``."""
        init_like_linear(self.weight, self.bias)

    def _maps(self) -> Dict[str, Any]:
        """Return the sizes as keywords of the operators."""
        return {name: getattr(self, name) for name in ("input_size", "stride", "padding", "dilation", "groups")}

    def _fix_input_size(self, height: int, width: int) -> None:
        if self.input_size is None:
            self.input_size = (height, width)
        elif self.input_size != (height, width):
            raise ValueError(f"x must be maps of {self.input_size}, as input_size says, got {(height, width)}")

    def _is_dense(self, x: DenseOrSparse, break_even: float) -> bool:
        compiled = popart.uses_operator("event-driven layers on maps", "SparseConv2d") or is_compiling()
        # On a GPU the dense path runs: the activity below which operators are faster has not been measured.
        return is_dense(x, self.path, break_even, compiled, lambda _: True)

    def chosen(self, x: DenseOrSparse, break_even: float = CONVOLUTION.layer) -> DenseOrSparse:
        """Return the input in the form whose convolution is faster: spikes, or dense maps ``[T, B, C, H, W]``."""
        if isinstance(x, SparseSpikes):
            shape = input_map_shape(x, self.in_channels, self.input_size)
            check_device("x", x, "the layer", self.weight.device)
            self._fix_input_size(*shape[1:])
            if self._is_dense(x, break_even):
                return x.to_dense().reshape(*x.ids.shape[:2], *shape)
            return x if x.map_shape == shape else x.with_maps(shape)
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"x must be a torch.Tensor or SparseSpikes, got {type(x).__name__}")
        if x.dim() == 3 and self.input_size is not None:
            height, width = self.input_size
            if x.shape[2] == self.in_channels * height * width:
                x = x.reshape(*x.shape[:2], self.in_channels, height, width)
        if x.dim() != 5 or x.shape[2] != self.in_channels or x.shape[3] * x.shape[4] == 0:
            raise ValueError(f"x must have shape [T, B, in_channels={self.in_channels}, H, W], got {tuple(x.shape)}")
        if x.is_complex():
            raise TypeError(f"x must be real, got {x.dtype}")
        if x.dtype not in (torch.float32, torch.float64):
            x = x.to(compute_dtype(self.weight.dtype))
        check_device("x", x, "the layer", self.weight.device)
        self._fix_input_size(*x.shape[3:])
        if self._is_dense(x, break_even):
            return x
        return ops.dense_to_sparse(x.flatten(2)).with_maps((x.shape[2], x.shape[3], x.shape[4]))

    def _convolved(self, x: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Return the convolution of dense maps, in chunks of time that each are one batch."""
        weight = self.weight

        def convolved(chunk: torch.Tensor) -> torch.Tensor:
            maps = chunk.to(weight.dtype).flatten(0, 1)
            out = nn.functional.conv2d(maps, weight, bias, self.stride, self.padding, self.dilation, self.groups)
            return out.unflatten(0, chunk.shape[:2])

        lengths = self._chunk_lengths(x)
        if len(lengths) < 2:
            return convolved(x)
        joined: torch.Tensor = Join.apply(*map(convolved, x.split(lengths)))
        return joined

    def _chunk_lengths(self, x: torch.Tensor) -> List[int]:
        """Return the lengths of the chunks of time, on a CPU as in :class:`MultiStep`: a chunk's buffers are reused."""
        if not is_direct(x, dispatched=True) or popart.on_ipu():
            return [x.shape[0]]
        out = math.prod(self._out_shape() or ())
        return chunk_lengths(x.shape[0], max(x[:1].numel(), out * x.shape[1]) * self.weight.element_size())

    def _out_shape(self) -> Optional[Tuple[int, int, int]]:
        """Return channels, height and width of the output; None if the input's size is unknown."""
        if self.input_size is None:
            return None
        height, width = map(reached, self.input_size, self.kernel_size, self.stride, self.padding, self.dilation)
        return self.out_channels, height, width

    def _repr_of_maps(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        for name, default in (("padding", (0, 0)), ("dilation", (1, 1)), ("groups", 1), ("input_size", None)):
            value = getattr(self, name)
            parts += [f"{name}={value}"] if value != default else []
        return ", ".join(parts)


class SparseConv2d(_MapLayer):
    r"""``nn.Conv2d`` for spikes: each spike adds its kernel's weights to the outputs that it reaches.

    .. math:: y_{tb} = W * s_{tb} + b

    :math:`s_{tb}` is the map of the spikes' values, 0 without a spike. The spike at row :math:`y`, column :math:`x` of
    channel :math:`c` has the id ``(c * H + y) * W + x``. :func:`snnipu.ops.sparse_conv2d` defines sum and gradients.
    The ``state_dict`` equals that of ``nn.Conv2d``.

    .. code-block:: python

        layer = snn.SparseConv2d(2, 12, 5, input_size=(34, 34))
        y = layer(spikes)                # SparseSpikes, or a dense [T, B, 2, 34, 34] -> [T, B, 12, 30, 30]

    Args:
        in_channels: channels ``C`` of the input.
        out_channels: channels of the output.
        kernel_size: an int, or a pair ``(height, width)``.
        stride: step of the kernel, an int or a pair.
        padding: zeros on each side, an int or a pair; ``"valid"``: none; ``"same"``: as many as keep the size.
        dilation: distance of the kernel's elements, an int or a pair.
        groups: number of groups of channels, which divides both numbers of channels.
        bias: if True, the layer has a learnable bias.
        input_size: ``(H, W)`` of the input; None: the size of the first call.
        path: ``"sparse"``: products of spikes; ``"dense"``: one convolution over all time steps; ``"auto"``: the faster
            one at the measured activity of the input. Results are equal up to the order of additions. On CUDA,
            ``"auto"`` is ``"dense"``.

    Attributes:
        weight: ``[out_channels, in_channels / groups, height, width]``.
        bias: ``[out_channels]``, or None.
        input_size: ``(H, W)`` of the input; None before it is known.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: :func:`snnipu.ops.sparse_conv2d`; Messikommer et al., "Event-based asynchronous sparse convolutional
    networks", ECCV 2020.
    """

    takes_whole_sequences = True  # in a MultiStep

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Union[Pair, str] = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = False,
        *,
        input_size: Optional[Pair] = None,
        path: str = "auto",
    ) -> None:
        super().__init__()
        self._set_maps(locals())
        self.path = check_path(path)
        self.reset_parameters()

    def forward(self, x: DenseOrSparse) -> torch.Tensor:
        """Return the output ``[T, B, out_channels, H', W']``.

        Args:
            x: SparseSpikes of maps, or a dense ``[T, B, in_channels, H, W]`` of any real dtype.

        Raises:
            TypeError, ValueError: wrong type, shape or device.
        """
        chosen = self.chosen(x, convolution_share(self.out_channels // self.groups))
        if isinstance(chosen, SparseSpikes):
            return ops.sparse_conv2d(chosen, self.weight, self.bias, **self._maps())
        return self._convolved(chosen, self.bias)

    def extra_repr(self) -> str:
        path = "" if self.path == "auto" else f", path={self.path!r}"
        return self._repr_of_maps() + (", bias=True" if self.bias is not None else "") + path


class ConvolutionalNeurons(_MapLayer, SparseNeurons):
    """The base class of event-driven layers on maps: convolution of the spikes, fused neurons, selection of spikes."""

    def _set_maps(self, options: Mapping[str, Any]) -> None:
        super()._set_maps(options)
        self._neurons = self.out_channels

    def _per_neuron(self, parameter: torch.Tensor) -> torch.Tensor:
        return parameter if parameter.numel() == 1 else parameter.reshape(-1, 1, 1)

    def weighted(self, x: DenseOrSparse) -> torch.Tensor:
        if isinstance(x, SparseSpikes):
            return ops.sparse_conv2d(x, self.weight, **self._maps())
        if self.input_size is None:
            raise ValueError("input_size must be known: give it, or call the layer first")
        return self._convolved(x.reshape(*x.shape[:2], self.in_channels, *self.input_size))

    def _membranes(self, x: DenseOrSparse, delay: int) -> torch.Tensor:
        if isinstance(x, SparseSpikes) or delay or len(lengths := self._chunk_lengths(x)) < 2:
            return super()._membranes(x, delay)
        state: Optional[List[torch.Tensor]] = None
        membranes: List[torch.Tensor] = []
        for chunk in x.split(lengths):
            mem, state = self.integrated(self.weighted(chunk), delay, state, goes_on=True)
            membranes.append(mem)
        joined: torch.Tensor = Join.apply(*membranes)
        return joined

    def to_dense(self) -> nn.Sequential:
        """Return ``nn.Sequential`` of ``nn.Conv2d`` and the neuron with the same parameters.

        The neuron's ``sequence`` takes ``[T, B, out_channels, H', W']``.
        """
        return self._dense_twin(
            nn.Conv2d(
                self.in_channels,
                self.out_channels,
                self.kernel_size,
                self.stride,
                self.padding,
                self.dilation,
                self.groups,
                bias=self.bias is not None,
                device=self.weight.device,
                dtype=self.weight.dtype,
            )
        )

    def extra_repr(self) -> str:
        bias = ", bias=True" if self.bias is not None else ""
        return f"{self._repr_of_maps()}{bias}, {self._repr_of_neurons()}"


class SparseConvLeaky(ConvolutionalNeurons):
    r"""``nn.Conv2d`` and leaky integrate-and-fire neurons as one event-driven layer.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        x_t &= \alpha W * s^{in}_t + b \\
        u_t &= \beta (1 - r_t) u_{t-1} + x_t \quad \text{(zero)} \\
        u_t &= \beta u_{t-1} + x_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= \beta u_{t-1} + x_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    :math:`W *` is a convolution; the other symbols, spikes and gradients are as in :class:`SparseLeaky`. The neuron at
    row :math:`y`, column :math:`x` of channel :math:`c` has the id ``(c * H + y) * W + x``. With ``max_spikes=None``
    and ``grad_threshold=None`` the layer equals ``nn.Conv2d`` followed by ``Leaky``, up to the order of additions.

    .. code-block:: python

        layer = snn.SparseConvLeaky(2, 12, 5, input_size=(34, 34), beta=0.95, grad_threshold=0.9)
        spikes = layer(x)                # x: SparseSpikes or a dense [T, B, 2, 34, 34] -> SparseSpikes
        spikes.map_shape                 # (12, 30, 30): the next layer on maps reads it

    Args:
        in_channels: channels ``C`` of the input.
        out_channels: channels of the output.
        kernel_size: an int, or a pair ``(height, width)``.
        stride: step of the kernel, an int or a pair.
        padding: zeros on each side, an int or a pair; ``"valid"``: none; ``"same"``: as many as keep the size.
        dilation: distance of the kernel's elements, an int or a pair.
        groups: number of groups of channels, which divides both numbers of channels.
        beta: :math:`\beta`, the decay of the membrane per step, clamped to [0, 1]: a number, or a tensor of one element
            or ``[out_channels]``.
        input_size: ``(H, W)`` of the input; None: the size of the first call.
        threshold: :math:`\theta`, the membrane above which a neuron spikes; a number or a tensor, as ``beta``.
        grad_threshold: second threshold, below ``threshold``: a neuron whose membrane is above it carries gradient.
            None: every neuron carries gradient. The attribute may be set at any time, for example by a schedule.
        max_spikes: slots of a step, for spikes and gradient-only neurons of all maps together; None: as many as needed.
            The attribute may be set at any time.
        reset_mechanism: change of the membrane in the step after a spike: ``"zero"`` sets it to 0, ``"subtract"``
            subtracts the threshold, ``"none"`` keeps it.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            of ``mem - threshold`` whose gradient is used. None: ``atan()``.
        bias: if True, a learnable bias is added to the current.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        input_scale: :math:`\alpha`, a factor of the weighted spikes, not 0. ``(1 - beta) * 10`` is the update rule of
            the published sparse benchmark (arXiv 2311.04386).
        overflow: which neurons get a slot if there are too few: ``"lowest"`` ids first, or ``"rotate"``, where the
            first id moves with the time step. :func:`snnipu.ops.select_spikes` defines both.
        path: ``"sparse"``: products of spikes; ``"dense"``: one convolution over all time steps; ``"auto"``: the faster
            one at the measured activity of the input. Results are equal up to the order of additions. On CUDA,
            ``"auto"`` is ``"dense"``.

    Attributes:
        weight: ``[out_channels, in_channels / groups, height, width]``.
        bias: ``[out_channels]``, or None.
        activity: mean spikes per neuron and step of the last forward pass, from 0 to 1; None before the first.
        overflow: spikes without a slot in the last forward pass; None before the first.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: :func:`snnipu.ops.sparse_conv_lif_sequence`; Gruen et al., "Sparse spiking neural networks on the IPU",
    arXiv 2311.04386, 2023.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Union[Pair, str] = 0,
        dilation: Pair = 1,
        groups: int = 1,
        *,
        beta: Parameter,
        input_size: Optional[Pair] = None,
        threshold: Parameter = 1.0,
        grad_threshold: Optional[float] = None,
        max_spikes: Optional[int] = None,
        reset_mechanism: str = "zero",
        spike_grad: Optional[SpikeGrad] = None,
        bias: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        input_scale: float = 1.0,
        overflow: str = "lowest",
        path: str = "auto",
    ) -> None:
        super().__init__()
        self._set_maps(locals())
        self._set_neurons(locals())

    def _spikes(self, x: DenseOrSparse, delay: int) -> SparseSpikes:
        """Return the layer's spikes, by one operator if ``x`` is spikes."""
        if not isinstance(x, SparseSpikes):
            return super()._spikes(x, delay)
        return ops.sparse_conv_lif_sequence(
            x, self.weight, self.bias, **self._neuron_options(), **self._maps(), delay=delay
        )

    def pools_in_one(self, pool: "SparsePool2d") -> bool:
        """Return True if the layer and the following ``pool`` can run as one operator, which returns pooled spikes."""
        return (
            type(self) is SparseConvLeaky
            and type(pool) is SparsePool2d
            and is_plain(self, pool)
            and pool.mode == "max"
            and pool.input_size is not None
            and pool.input_size == self._out_shape()
            and (pool.stride, pool.padding) == (pool.kernel_size, (0, 0))
            and self.max_spikes is None
            and fused(self.spike_grad)[0] is not None
            and (weight := self.weight).device.type == "cpu"
            and weight.dtype in (torch.float32, torch.float64)
        )

    def pooled_sparsely(self, x: SparseSpikes, pool: "SparsePool2d", delay: int) -> SparseSpikes:
        """Run layer and ``pool`` as one operator; return the pooled spikes. See :meth:`pools_in_one`."""
        options = self._neuron_options()
        del options["max_spikes"], options["overflow"]
        out, counts = sparse_conv_lif_pool(
            x, self.weight, self.bias, pool.kernel_size, Maps(**self._maps()), **options, delay=delay
        )
        self._count(counts)
        return out

    def _count(self, counts: torch.Tensor) -> None:
        """Store the spike counts of a call that did not return the layer's own slots."""
        self._last = SpikeTotals(counts, math.prod(self._out_shape() or ()), None)

    def pooled_densely(self, x: torch.Tensor, pool: "SparsePool2d", delay: int) -> torch.Tensor:
        """Return dense pooled spikes ``[T, B, out_channels, h, w]`` from dense maps.

        Every neuron carries gradient. See :meth:`pools_in_one`.
        """
        current = self._convolved(x)
        if self.input_scale != 1:
            current = current * self.input_scale
        spk = self.stepped(delayed(current, delay), spike_grad=self.spike_grad or atan()).spk
        fired = spk.detach().flatten(2).sum(2).int()
        self._count(torch.stack([fired, torch.full_like(fired, math.prod(spk.shape[2:]))], 2))
        maps: torch.Tensor = max_pool2d(spk.flatten(0, 1), pool.kernel_size)
        return maps.unflatten(0, spk.shape[:2])


def _with_all_slots(x: torch.Tensor) -> SparseSpikes:
    """Return the nonzero elements of ``x`` ``[T, B, N]`` as spikes, and the zeros as gradient-only slots."""
    x = dense_argument("x", x)
    ids = (x == 0).sort(dim=-1, stable=True).indices
    counts = torch.stack([(x != 0).sum(-1), torch.full(x.shape[:2], x.shape[2], device=x.device)], -1)
    return SparseSpikes._trusted(ids.int(), x.gather(-1, ids), counts.int(), x.shape[2])


class SparsePool2d(nn.Module):
    """A pool of maps for spikes, from ids to ids.

    Each output is the maximum, average or sum of the spikes' values in its window, 0 without a spike.
    :func:`snnipu.ops.sparse_pool2d` defines slots and gradients.

    .. code-block:: python

        pool = snn.SparsePool2d(2, input_size=(12, 30, 30))
        pooled = pool(spikes)            # SparseSpikes of 12 x 30 x 30 neurons -> SparseSpikes of 12 x 15 x 15

    Args:
        kernel_size: size of the window, an int or a pair ``(height, width)``.
        stride: distance of the windows, an int or a pair; None: ``kernel_size``.
        padding: border on each side, at most half a window, an int or a pair, as in ``nn.MaxPool2d``.
        mode: ``"max"``, ``"average"`` (``nn.AvgPool2d``) or ``"sum"``. Average and sum return values other than 1.
        input_size: ``(C, H, W)`` of the input; None: the ``map_shape`` of the spikes in the first call.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: ``nn.MaxPool2d`` and ``nn.AvgPool2d``, on spikes.
    """

    takes_whole_sequences = True  # in a MultiStep

    def __init__(
        self,
        kernel_size: Pair,
        stride: Optional[Pair] = None,
        padding: Pair = 0,
        *,
        mode: str = "max",
        input_size: Optional[Tuple[int, int, int]] = None,
    ) -> None:
        super().__init__()
        self.kernel_size = pair("kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else pair("stride", stride, 1)
        self.padding = pair("padding", padding, 0)
        if any(2 * self.padding[axis] > self.kernel_size[axis] for axis in (0, 1)):
            raise ValueError(f"padding must be at most half of kernel_size, {self.kernel_size}, got {self.padding}")
        mode_code(mode)
        self.mode = mode
        self.input_size: Optional[Tuple[int, int, int]] = None
        if input_size is not None:
            if not isinstance(input_size, (tuple, list)) or len(input_size) != 3:
                raise TypeError(f"input_size must be (channels, height, width) or None, got {input_size!r}")
            for size in input_size:
                check_int("input_size", size)
            self.input_size = check_map_shape(input_size, math.prod(input_size))

    def forward(self, x: DenseOrSparse) -> SparseSpikes:
        """Return SparseSpikes of the pooled maps.

        Args:
            x: SparseSpikes of maps, or a dense ``[T, B, C, H, W]``, whose nonzero elements are spikes. Its zeros have a
                gradient, too, so that a dense ``x`` that requires one takes longer than PyTorch's pools.

        Raises:
            TypeError, ValueError: wrong type or shape.
        """
        if isinstance(x, torch.Tensor):
            if x.dim() != 5:
                raise ValueError(f"x must have shape [T, B, C, H, W], got {tuple(x.shape)}")
            if not (x.is_floating_point() or x.is_complex()):
                x = x.float()
            spikes = _with_all_slots(x.flatten(2)) if x.requires_grad else ops.dense_to_sparse(x.flatten(2))
            x = spikes.with_maps((x.shape[2], x.shape[3], x.shape[4]))
        if not isinstance(x, SparseSpikes):
            raise TypeError(f"x must be a torch.Tensor or SparseSpikes, got {type(x).__name__}")
        if self.input_size is not None and x.map_shape not in (None, self.input_size):
            raise ValueError(f"x must be maps of {self.input_size}, as input_size says, got {x.map_shape}")
        if self.input_size is not None and x.num_neurons != math.prod(self.input_size):
            raise ValueError(
                f"x must be maps of {self.input_size}, as input_size says, got spikes of {x.num_neurons} neurons"
            )
        out = ops.sparse_pool2d(
            x, self.kernel_size, self.stride, self.padding, mode=self.mode, input_size=self.input_size
        )
        if self.input_size is None:
            self.input_size = x.map_shape
        return out

    def to_dense(self) -> nn.Module:
        """Return PyTorch's pool of dense maps that computes the same."""
        if self.mode == "max":
            return nn.MaxPool2d(self.kernel_size, self.stride, self.padding)
        # The sum over a window is its average with a divisor of 1.
        divisor = 1 if self.mode == "sum" else None
        return nn.AvgPool2d(self.kernel_size, self.stride, self.padding, divisor_override=divisor)

    def extra_repr(self) -> str:
        text = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, mode={self.mode!r}"
        return text + ("" if self.input_size is None else f", input_size={self.input_size}")
