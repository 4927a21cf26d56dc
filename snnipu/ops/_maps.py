"""Sizes of convolutions and pools, and conversions of spikes on maps to dense tensors."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from snnipu.ops._slots import scatter
from snnipu.spikes import SparseSpikes, check_num_neurons

Pair = Union[int, Sequence[int]]
Size = Tuple[int, int]


def pair(name: str, value: object, least: int) -> Size:
    """Return ``value``, an int or two ints, as (vertical, horizontal); check that both are at least ``least``."""
    if type(value) is tuple and len(value) == 2:  # fast path: layers pass tuples at every call
        first, second = value
        if type(first) is int and type(second) is int and first >= least and second >= least:
            return first, second
    both = (value, value) if isinstance(value, int) else value
    if not isinstance(both, (tuple, list)) or len(both) != 2:
        raise TypeError(f"{name} must be an int or two, got {value!r}")
    for size in both:
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{name} must be an int or two, got {value!r}")
    if min(both) < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return int(both[0]), int(both[1])


def unchecked_pair(size: Any) -> Size:
    """Return a size in any form that PyTorch accepts as two ints."""
    return (int(size[0]), int(size[-1])) if isinstance(size, (tuple, list)) else (int(size), int(size))


def reached(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Return the output size of a window along ``size``; below 1 if the window does not fit."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


class Geometry(NamedTuple):
    """Sizes of a convolution, as the operators take them: a list of these ints."""

    in_channels: int
    in_height: int
    in_width: int
    out_channels: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    stride_y: int
    stride_x: int
    padding_y: int
    padding_x: int
    dilation_y: int
    dilation_x: int
    groups: int

    @property
    def inputs(self) -> int:
        return self.in_channels * self.in_height * self.in_width

    @property
    def positions(self) -> int:
        """Number of positions of an output map."""
        return self.out_height * self.out_width

    @property
    def neurons(self) -> int:
        return self.out_channels * self.positions

    @property
    def in_shape(self) -> Tuple[int, int, int]:
        return self[0], self[1], self[2]

    @property
    def out_shape(self) -> Tuple[int, int, int]:
        return self[3], self[4], self[5]


def conv_geometry(
    weight: torch.Tensor, size: Size, stride: Size, padding: Size, dilation: Size, groups: int
) -> Geometry:
    """Return the sizes of a convolution with ``weight`` ``[out, in / groups, kh, kw]`` on maps of ``size``.

    Raises:
        ValueError: the kernel is larger than the padded input.
    """
    kernel = (weight.shape[2], weight.shape[3])
    out = []
    for axis, name in enumerate(("height", "width")):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        if size[axis] + 2 * padding[axis] < reach:
            raise ValueError(
                f"kernel_size: the kernel's {name}, {reach} with its dilation, must be at most that of the input with "
                f"its padding, {size[axis] + 2 * padding[axis]}"
            )
        out.append(reached(size[axis], kernel[axis], stride[axis], padding[axis], dilation[axis]))
    sizes = [weight.shape[1] * groups, *size, weight.shape[0], *out, *kernel, *stride, *padding, *dilation, groups]
    geometry = Geometry(*sizes)
    check_num_neurons(geometry.inputs)
    check_num_neurons(geometry.neurons)
    return geometry


def is_convolution(sizes: Geometry) -> bool:
    """Return True if the sizes are consistent with each other."""
    g = sizes
    if min(*g[:10], *g[12:]) < 1 or min(g[10:12]) < 0 or g.in_channels % g.groups or g.out_channels % g.groups:
        return False
    return list(g[4:6]) == [reached(*each) for each in zip(g[1:3], g[6:8], g[8:10], g[10:12], g[12:14])]


class PoolGeometry(NamedTuple):
    """Sizes of a pool, as the operators take them: a list of these ints."""

    channels: int
    in_height: int
    in_width: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    stride_y: int
    stride_x: int
    padding_y: int
    padding_x: int

    @property
    def inputs(self) -> int:
        return self.channels * self.in_height * self.in_width

    @property
    def neurons(self) -> int:
        return self.channels * self.out_height * self.out_width

    @property
    def out_shape(self) -> Tuple[int, int, int]:
        return self.channels, self.out_height, self.out_width


def pool_geometry(map_shape: Tuple[int, int, int], kernel: Size, stride: Size, padding: Size) -> PoolGeometry:
    """Return the sizes of a pool on maps of ``map_shape``.

    Raises:
        ValueError: the window is larger than the padded input, or the padding is more than half of the window.
    """
    out = []
    for axis, name in enumerate(("height", "width")):
        if 2 * padding[axis] > kernel[axis]:
            raise ValueError(f"padding must be at most half of kernel_size, {kernel}, got {padding}")
        if map_shape[axis + 1] + 2 * padding[axis] < kernel[axis]:
            raise ValueError(
                f"kernel_size: the window's {name}, {kernel[axis]}, must be at most that of the input with its "
                f"padding, {map_shape[axis + 1] + 2 * padding[axis]}"
            )
        out.append(reached(map_shape[axis + 1], kernel[axis], stride[axis], padding[axis]))
    sizes = [*map_shape, *out, *kernel, *stride, *padding]
    return PoolGeometry(*sizes)


def is_pool(sizes: PoolGeometry) -> bool:
    """Return True if the sizes are consistent with each other."""
    g = sizes
    if min(g[:9]) < 1 or min(g[9:]) < 0 or any(2 * padding > kernel for padding, kernel in zip(g[9:], g[5:7])):
        return False
    return list(g[3:5]) == [reached(*each) for each in zip(g[1:3], g[5:7], g[7:9], g[9:])]


def spike_maps(
    values: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, inputs: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the spikes' values as dense ``[T, B, inputs]``, and a mask of the neurons with a carried slot."""
    slots = torch.arange(ids.shape[2], device=ids.device)
    spikes = torch.where(slots < counts[..., :1], values, torch.zeros((), dtype=values.dtype, device=values.device))
    return scatter(spikes, ids, counts, inputs), scatter(torch.ones_like(values), ids, counts, inputs) > 0


def input_map_shape(spikes: SparseSpikes, channels: int, size: Optional[Size]) -> Tuple[int, int, int]:
    """Return ``(C, H, W)`` of an input of ``channels`` maps; (H, W) is ``size``, or that of ``spikes.map_shape``.

    Raises:
        ValueError: neither is given, or they contradict each other or the number of neurons.
    """
    known = spikes.map_shape
    if size is None and known is None:
        raise ValueError(
            f"input_size must be given, (height, width): the spikes of {spikes.num_neurons} neurons have no map_shape "
            "that would tell it"
        )
    if known is not None and known[0] != channels:
        raise ValueError(f"spikes must be of {channels} channels, got those of map_shape={known}")
    shape = known if size is None else (channels, *size)
    assert shape is not None
    if known is not None and known != shape:
        raise ValueError(f"spikes must be of maps {shape}, as input_size says, got map_shape={known}")
    if shape[0] * shape[1] * shape[2] != spikes.num_neurons:
        raise ValueError(
            f"spikes must be of {channels} x {shape[1]} x {shape[2]} = {shape[0] * shape[1] * shape[2]} neurons, as "
            f"input_size says, got {spikes.num_neurons}"
        )
    return shape


def as_list(geometry: Union[Geometry, PoolGeometry]) -> List[int]:
    """Return the sizes as the list of ints that operators take."""
    return list(geometry)
