"""Break-even activities between dense products and gathers of weights, and the choice between the two."""

from math import prod
from typing import Callable, NamedTuple, Sequence

import torch

from snnipu.ops._arguments import count_nonzero
from snnipu.spikes import DenseOrSparse, SparseSpikes


class Shares(NamedTuple):
    """Break-even activities on a CPU: shares of the input neurons in a step above which dense products are faster.

    ``currents`` and ``layer`` are shares of spikes. ``gradient`` is for the gradient of the spikes' values, and is a
    share of carried slots.
    """

    currents: float
    layer: float
    gradient: float


# Forward and backward pass together cost the same at these shares. They were measured by `make bench CASE=sparse`, see
# docs/how-to/choose-caps-and-thresholds.md.
LINEAR = Shares(currents=0.3, layer=0.3, gradient=0.25)
# Measured break-evens of layers with 3 x 3 and 5 x 5 kernels and 16, 32 and 64 input channels: 0.55 to 0.8 with the
# backward pass, 0.4 to 0.7 without. A convolution without neurons, whose output channels fill the kernels' registers:
# 0.5 to 0.7 for eight layers.
CONVOLUTION = Shares(currents=0.5, layer=0.6, gradient=0.85)
# The layer's share if it runs with its pool as one operator.
CONVOLUTION_AND_POOL = 0.9
_CHANNELS_AT_ONCE = 16
# The break-even of a list of synapses, times the share of synapses in the list. PyTorch's indexing takes 14 ns for each
# pair of a spike and a synapse; its matrix product takes 0.02 ns for each synapse of the full matrix.
LISTED = 0.0012


# With delays a dense layer needs one product for each step up to the longest delay.
ALWAYS_SPARSE = Shares(currents=1.0, layer=1.0, gradient=1.0)

# Limits for the dense input of an ordinary layer: the share of nonzero numbers up to which events are faster, with the
# conversion included. The input's gradient stays a dense product.
# Linear layers: (fewest outputs, limit). ROWS_OF_WEIGHTS / rows and INPUTS_OF_A_ROW / inputs are subtracted: packing
# the weights and unpacking their gradient takes the same time for few rows, and a row has a fixed cost.
LINEAR_INPUT = ((512, 0.33), (256, 0.24), (128, 0.15), (64, 0.1), (32, 0.06), (8, 0.05))
ROWS_OF_WEIGHTS, INPUTS_OF_A_ROW = 24, 10
# Convolutions of stride 1: (fewest numbers of a kernel in a channel, fewest output maps of a group, limit), by the
# number of spatial dimensions. A group must have FEWEST_CHANNELS input channels.
CONVOLUTION_INPUT = {
    1: ((25, 8, 0.35), (9, 64, 0.18), (9, 32, 0.1), (5, 64, 0.15), (5, 32, 0.07), (3, 64, 0.06)),
    2: ((25, 64, 0.22), (25, 32, 0.16), (25, 16, 0.08), (9, 64, 0.18), (9, 32, 0.08)),
}
FEWEST_CHANNELS = {1: 16, 2: 4}
# The same table for a first layer with up to MOST_CHANNELS input channels, for example of event frames. Its weights
# need a gradient and its input does not. oneDNN's gradient of such weights takes three to five times its forward pass.
FIRST_CONVOLUTION = {1: ((9, 16, 0.1), (5, 32, 0.07)), 2: ((9, 16, 0.25), (25, 8, 0.15), (9, 8, 0.1))}
MOST_CHANNELS = {1: 15, 2: 2}
# With fewer multiplications, counting the nonzero inputs takes longer than the product.
FEWEST_PRODUCTS = 4_000_000
# A linear layer with 512 outputs or more within fixed_weights(), where its weight is already packed: (fewest weights,
# limit).
FIXED_LINEAR = ((4_000_000, 0.3), (1_000_000, 0.15))


def linear_input_limit(outputs: int, inputs: int, rows: int, fixed: bool = False) -> float:
    """Return the share of nonzero inputs up to which events are faster; 0: always dense.

    ``fixed``: the weight is fixed, see ``fixed_weights``.
    """
    share = next((share for least, share in LINEAR_INPUT if outputs >= least), 0.0)
    share = max(0.0, share - ROWS_OF_WEIGHTS / max(1, rows) - INPUTS_OF_A_ROW / max(1, inputs))
    if fixed and outputs >= LINEAR_INPUT[0][0]:
        share = max(share, next((of_fixed for least, of_fixed in FIXED_LINEAR if outputs * inputs >= least), 0.0))
    return share


def convolution_input_limit(weight: Sequence[int], groups: int, stride: int, learns_alone: bool = False) -> float:
    """Return the limit of a convolution, as :func:`linear_input_limit` does for a linear layer.

    Args:
        weight: shape of the weight, ``[maps, channels of a group, kh, kw]`` or ``[maps, channels of a group, k]``.
        groups: number of groups.
        stride: product of the strides of all dimensions.
        learns_alone: the weight needs a gradient, and the input does not.
    """
    maps, channels, *kernel = weight
    table = CONVOLUTION_INPUT[len(kernel)] if channels >= FEWEST_CHANNELS[len(kernel)] else ()
    if learns_alone and channels <= MOST_CHANNELS[len(kernel)]:
        table = FIRST_CONVOLUTION[len(kernel)]
    maps, taps = maps // groups, prod(kernel)
    rows = (share for least, fewest, share in table if taps >= least and maps >= fewest)
    return next(rows, 0.0) / stride


def shares_of_list(left: float) -> Shares:
    """Return the break-even shares of a pruned matrix; ``left`` is the share of its synapses that remain."""
    share = min(1.0, LISTED / left) if left else 1.0
    return Shares(currents=share, layer=share, gradient=share)


def convolution_share(channels: int) -> float:
    """Return the break-even share of a convolution without neurons, with this many output channels in a group."""
    return CONVOLUTION.currents * channels / (-(-channels // _CHANNELS_AT_ONCE) * _CHANNELS_AT_ONCE)


def is_dense(
    x: DenseOrSparse,
    path: str,
    limit: float,
    compiled: bool,
    on_gpu: Callable[[SparseSpikes], bool],
) -> bool:
    """Return True if a layer should run as a dense product.

    A dense tensor that needs a gradient stays dense, because the gradient of its zeros would be lost. Tensors on CUDA
    and without data stay dense, too.

    Args:
        x: the layer's input.
        path: ``"dense"``, ``"sparse"`` or ``"auto"``. ``auto`` is dense if more than ``limit`` of the input neurons
            spike in a step.
        limit: the break-even share.
        compiled: the call is traced, so the data cannot be read. Spikes stay spikes, and dense tensors stay dense.
        on_gpu: decides ``auto`` for spikes on CUDA. Counting them would make the host wait.
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


# Break-even shares on a GPU for the three products of a training step together. STRICT and TF32 were measured on an
# H100 with 700 to 4,096 inputs and 512 to 2,048 outputs: 6 to 8 %, and 0.8 %. HALF and DOUBLE are estimates from these
# and the card's peak arithmetic; they were not measured.
STRICT = 0.06
TF32 = 0.008
HALF = 0.005
DOUBLE = 0.03


def tf32_allowed() -> bool:
    """Return True if float32 matrix products on CUDA may round their factors to TF32."""
    matmul = torch.backends.cuda.matmul
    # PyTorch's newer setting follows the older one, but not the other way round.
    try:
        precision = matmul.fp32_precision
    except (AttributeError, AssertionError):  # the latter in PyTorch 2.0
        precision = None
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def break_even(dtype: torch.dtype) -> float:
    """Return the share of spiking inputs above which the matrix product of ``dtype`` is faster on a GPU."""
    if torch.is_autocast_enabled():
        return HALF
    if dtype == torch.float64:
        return DOUBLE
    return TF32 if tf32_allowed() else STRICT
