"""From which activity on dense products are faster than gathers: all break-evens, and the choice between the two."""

from math import prod
from typing import Callable, NamedTuple, Sequence, Union

import torch

from snnipu.ops._arguments import count_nonzero
from snnipu.spikes import SparseSpikes


class Shares(NamedTuple):
    """On a CPU: of the input's neurons, those that spike in a step, or for a gradient those that carry it."""

    currents: float
    layer: float
    gradient: float  # of the values


# Where forward and backward pass together cost the same: measured by `make bench CASE=sparse`, see
# docs/how-to/choose-caps-and-thresholds.md.
LINEAR = Shares(currents=0.3, layer=0.3, gradient=0.25)
# Layers of 3 x 3 and 5 x 5 kernels with neurons, of 16, 32 and 64 input channels, cost the same at 0.55 to 0.8 with the
# backward pass, and at 0.4 to 0.7 without; a convolution by itself, whose output channels fill the kernels' registers,
# at 0.5 to 0.7, of eight layers.
CONVOLUTION = Shares(currents=0.5, layer=0.6, gradient=0.85)
# The same for a layer that runs with its pool as one operator.
CONVOLUTION_AND_POOL = 0.9
_CHANNELS_AT_ONCE = 16
# Of a pruned matrix as a list, times the share of synapses that are left: PyTorch's indexing takes 14 ns for a pair of
# spike and synapse, its matrix product 0.02 for each of all synapses.
LISTED = 0.0012


# With delays a dense product has a term for each step of the longest one.
ALWAYS_SPARSE = Shares(currents=1.0, layer=1.0, gradient=1.0)

# Of an ordinary layer's input, whose gradient stays a dense product: up to which share of nonzero numbers events are
# faster, converting included. A linear layer's by how many outputs it has at least, less ROWS_OF_WEIGHTS / rows and
# INPUTS_OF_A_ROW / inputs: packing weights and unpacking their gradient takes as long for few rows as for many, and so
# does what surrounds a row for few inputs.
LINEAR_INPUT = ((512, 0.33), (256, 0.24), (128, 0.15), (64, 0.1), (32, 0.06), (8, 0.05))
ROWS_OF_WEIGHTS, INPUTS_OF_A_ROW = 24, 10
# A convolution's of steps of 1 by how many numbers a kernel has in a channel and how many maps a group gives, at least,
# from FEWEST_CHANNELS a group on.
CONVOLUTION_INPUT = {
    1: ((25, 8, 0.35), (9, 64, 0.18), (9, 32, 0.1), (5, 64, 0.15), (5, 32, 0.07), (3, 64, 0.06)),
    2: ((25, 64, 0.22), (25, 32, 0.16), (25, 16, 0.08), (9, 64, 0.18), (9, 32, 0.08)),
}  # of lines and of maps
FEWEST_CHANNELS = {1: 16, 2: 4}
# The same for up to MOST_CHANNELS input channels, of event frames say, where the weights need a gradient and the input
# does not: oneDNN's gradient of such weights takes three to five times as long as its forward pass.
FIRST_CONVOLUTION = {1: ((9, 16, 0.1), (5, 32, 0.07)), 2: ((9, 16, 0.25), (25, 8, 0.15), (9, 8, 0.1))}
MOST_CHANNELS = {1: 15, 2: 2}
# Multiplications below which finding out takes longer than they do.
FEWEST_PRODUCTS = 4_000_000
# Of a linear layer of 512 outputs or more within fixed_weights(), where its weight is packed already: by how many
# numbers that has at least.
FIXED_LINEAR = ((4_000_000, 0.3), (1_000_000, 0.15))


def linear_input_limit(outputs: int, inputs: int, rows: int, fixed: bool = False) -> float:
    """The share up to which events are faster; 0: always dense. ``fixed``: the weight is, see ``fixed_weights``."""
    share = next((share for least, share in LINEAR_INPUT if outputs >= least), 0.0)
    share = max(0.0, share - ROWS_OF_WEIGHTS / max(1, rows) - INPUTS_OF_A_ROW / max(1, inputs))
    if fixed and outputs >= LINEAR_INPUT[0][0]:
        share = max(share, next((of_fixed for least, of_fixed in FIXED_LINEAR if outputs * inputs >= least), 0.0))
    return share


def convolution_input_limit(weight: Sequence[int], groups: int, stride: int, learns_alone: bool = False) -> float:
    """As :func:`linear_input_limit`, for a weight ``[maps, channels of a group, kh, kw]``, or of lines ``[maps, channels
    of a group, k]``; ``stride``: of all directions, multiplied; ``learns_alone``: the weight does, the input not."""
    maps, channels, *kernel = weight
    table = CONVOLUTION_INPUT[len(kernel)] if channels >= FEWEST_CHANNELS[len(kernel)] else ()
    if learns_alone and channels <= MOST_CHANNELS[len(kernel)]:
        table = FIRST_CONVOLUTION[len(kernel)]
    maps, taps = maps // groups, prod(kernel)
    rows = (share for least, fewest, share in table if taps >= least and maps >= fewest)
    return next(rows, 0.0) / stride


def shares_of_list(left: float) -> Shares:
    """Of a pruned matrix, for the share of its synapses that are left."""
    share = min(1.0, LISTED / left) if left else 1.0
    return Shares(currents=share, layer=share, gradient=share)


def convolution_share(channels: int) -> float:
    """Of a convolution by itself, to so many channels of a group."""
    return CONVOLUTION.currents * channels / (-(-channels // _CHANNELS_AT_ONCE) * _CHANNELS_AT_ONCE)


def is_dense(
    x: Union[torch.Tensor, SparseSpikes],
    path: str,
    limit: float,
    compiled: bool,
    on_gpu: Callable[[SparseSpikes], bool],
) -> bool:
    """Whether a layer whose ``path`` is this is to run by a dense product.

    ``auto``: where more than ``limit`` of the input neurons spike in a step; on CUDA, where nothing is counted that the
    host would have to wait for, ``on_gpu`` tells. A dense tensor that needs a gradient stays dense, as the gradient of
    its zeros would be lost; so does one on CUDA or without data. ``compiled``: a graph is made, which cannot look at
    the data: spikes stay spikes, and a dense tensor stays one.
    """
    if path != "auto":
        return path == "dense"
    if isinstance(x, SparseSpikes):
        if x.device.type == "cuda":
            return on_gpu(x)
        return x.device.type != "meta" and not compiled and x.activity > limit
    if compiled or x.requires_grad or x.device.type in ("meta", "cuda"):
        return True
    return count_nonzero(x) > limit * x.numel()


# On a GPU: share of the input neurons that spike in a step from which on the dense products of a training step, all
# three together, take less time. STRICT and TF32 were measured on an H100, of 700 to 4,096 inputs and 512 to 2,048
# outputs: 6 to 8 %, and 0.8 %. HALF and DOUBLE follow from these and the card's arithmetic; nobody measured them.
STRICT = 0.06
TF32 = 0.008
HALF = 0.005
DOUBLE = 0.03


def tf32_allowed() -> bool:
    """Whether float32 matrix products on CUDA may round their factors to TF32."""
    matmul = torch.backends.cuda.matmul
    # The newer of PyTorch's two settings, where it has both, follows the older one; not so the other way round.
    try:
        precision = matmul.fp32_precision
    except (AttributeError, AssertionError):  # the latter in PyTorch 2.0
        precision = None
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def break_even(dtype: torch.dtype) -> float:
    """Share of spiking inputs from which on the matrix product of ``dtype`` is faster, with the settings of now."""
    if torch.is_autocast_enabled():
        return HALF
    if dtype == torch.float64:
        return DOUBLE
    return TF32 if tf32_allowed() else STRICT
