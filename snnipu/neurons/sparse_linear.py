"""``snnipu.SparseLinear``: ``nn.Linear`` on spikes, and which of the two ways a layer's product is computed."""

import math
from typing import Optional, Union

import torch
from torch import nn

from snnipu import ops
from snnipu.backends import backend_for, popart
from snnipu.neurons.sparse_activity import DeviceActivity
from snnipu.ops._arguments import compute_dtype, is_compiling
from snnipu.ops._break_even import LINEAR, break_even, is_dense
from snnipu.ops.dense_to_sparse import dense_argument
from snnipu.spikes import SparseSpikes

DenseOrSparse = Union[torch.Tensor, SparseSpikes]
PATHS = ("auto", "sparse", "dense")


def check_path(path: object) -> str:
    """``path`` is one of ``PATHS``."""
    if path not in PATHS:
        raise ValueError(f"path must be 'auto', 'sparse' or 'dense', got {path!r}")
    return str(path)


def check_features(name: str, value: object) -> int:
    """``value`` is a positive int."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def _dense_on_gpu(x: SparseSpikes, weight: torch.Tensor, measured: DeviceActivity) -> bool:
    """Whether the matrix product is the faster on a GPU, told without waiting for ``x``."""
    if backend_for("sparse_linear", x.device) != "triton":
        return True
    limit = break_even(weight.dtype)
    # Where there is no room for more spikes, nothing needs to be measured.
    return x.capacity > limit * x.num_neurons and measured.of(x) > limit


def choose_path(x: DenseOrSparse, weight: torch.Tensor, path: str, measured: DeviceActivity) -> DenseOrSparse:
    """The input of a layer with this weight in the form whose product is to be computed: a dense tensor, or spikes.

    See :func:`~snnipu.ops._break_even.is_dense`; on CUDA the activity of some calls ago decides, which ``measured``,
    the layer's own, tells. A dense tensor may be of any real dtype: of bool, True is a spike of value 1, and of
    integers the numbers are the values.
    """
    in_features = weight.shape[1]
    compiled = popart.uses_operator("event-driven layers", "SparseLinear") or is_compiling()
    if isinstance(x, SparseSpikes):
        if x.num_neurons != in_features:
            raise ValueError(f"x must be spikes of in_features={in_features} neurons, got {x.num_neurons}")
    else:
        if isinstance(x, torch.Tensor) and not (x.is_floating_point() or x.is_complex()):
            x = x.to(compute_dtype(weight.dtype))
        x = dense_argument("x", x)
        if x.shape[2] != in_features:
            raise ValueError(f"x must have shape [T, B, in_features={in_features}], got {tuple(x.shape)}")
    _check_device(x, weight)

    def on_gpu(spikes: SparseSpikes) -> bool:
        return not compiled and _dense_on_gpu(spikes, weight, measured)

    dense = is_dense(x, path, LINEAR.currents, compiled, on_gpu)
    if isinstance(x, SparseSpikes):
        return x.to_dense() if dense else x
    return x if dense else ops.dense_to_sparse(x)


def _check_device(x: DenseOrSparse, weight: torch.Tensor) -> None:
    if x.device != weight.device:
        raise ValueError(f"x must be on the device of the layer, {weight.device}, got {x.device}")


def init_like_linear(weight: torch.Tensor, bias: Optional[torch.Tensor]) -> None:
    """``nn.Linear``'s initial values."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(weight.shape[1])
        nn.init.uniform_(bias, -bound, bound)


class SparseLinear(nn.Linear):
    r"""``nn.Linear`` whose input is spikes: :math:`y = s W^T + b`, touching the weights of spikes only.

    A read-out: ``SparseLinear`` followed by ``Leaky.sequence``. Equation, gradients and source are those of
    :func:`snnipu.ops.sparse_linear`; the ``state_dict`` is ``nn.Linear``'s.

    Args:
        in_features: neurons that spike.
        out_features: size of the output.
        bias: whether to add a learnable bias.
        path: ``"sparse"``, ``"dense"`` (a matrix product over all time steps at once), or ``"auto"``: whichever is
            faster at the measured activity of the input; on CUDA that of a few calls before, and a dense tensor stays
            dense.

    Raises:
        TypeError, ValueError: the message names the argument.
    """

    takes_whole_sequences = True  # in a MultiStep

    def __init__(self, in_features: int, out_features: int, bias: bool = False, *, path: str = "auto") -> None:
        super().__init__(
            check_features("in_features", in_features), check_features("out_features", out_features), bias=bias
        )
        self.path = check_path(path)
        self._measured = DeviceActivity()

    def forward(self, x: Union[torch.Tensor, SparseSpikes]) -> torch.Tensor:  # type: ignore[override]
        """``x``: SparseSpikes, or a dense ``[T, B, in]`` of any real dtype -> ``[T, B, out]``."""
        chosen = choose_path(x, self.weight, self.path, self._measured)
        if isinstance(chosen, SparseSpikes):
            return ops.sparse_linear(chosen, self.weight, self.bias)
        return nn.functional.linear(chosen.to(self.weight.dtype), self.weight, self.bias)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.path == "auto" else f", path={self.path!r}")
