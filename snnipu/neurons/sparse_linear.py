"""``nn.Linear`` on spikes, whole or pruned, and which of the two ways a layer's product is computed."""

import math
from typing import Any, Dict, List, Optional, Tuple, TypeVar, Union

import torch
from torch import nn
from torch.nn.utils import prune

from snnipu import ops
from snnipu._checks import check_device, check_int
from snnipu.backends import backend_for, popart
from snnipu.neurons.sparse_activity import DeviceActivity
from snnipu.ops._arguments import compute_dtype, is_compiling
from snnipu.ops._break_even import break_even, is_dense
from snnipu.ops.connections import Connection, FullyConnected, Listed
from snnipu.ops.dense_to_sparse import dense_argument
from snnipu.ops.listed_linear import check_synapses, listed_linear
from snnipu.spikes import SparseSpikes

DenseOrSparse = Union[torch.Tensor, SparseSpikes]
PATHS = ("auto", "sparse", "dense")


def check_path(path: object) -> str:
    """``path`` is one of ``PATHS``."""
    if path not in PATHS:
        raise ValueError(f"path must be 'auto', 'sparse' or 'dense', got {path!r}")
    return str(path)


def _dense_on_gpu(x: SparseSpikes, weight: torch.Tensor, measured: DeviceActivity) -> bool:
    """Whether the matrix product is the faster on a GPU, told without waiting for ``x``."""
    if backend_for("sparse_linear", x.device) != "triton":
        return True
    limit = break_even(weight.dtype)
    # Where there is no room for more spikes, nothing needs to be measured.
    return x.capacity > limit * x.num_neurons and measured.of(x) > limit


def choose_path(x: DenseOrSparse, weight: torch.Tensor, path: str, measured: DeviceActivity) -> DenseOrSparse:
    """:func:`choose` for a fully connected layer with this weight."""
    return choose(x, FullyConnected(weight), path, measured)


def choose(x: DenseOrSparse, connected: Connection, path: str, measured: DeviceActivity) -> DenseOrSparse:
    """The input of a layer so connected in the form whose product is to be computed: a dense tensor, or spikes.

    See :func:`~snnipu.ops._break_even.is_dense`; on CUDA the activity of some calls ago decides, which ``measured``,
    the layer's own, tells. A dense tensor may be of any real dtype: of bool, True is a spike of value 1, and of
    integers the numbers are the values.
    """
    in_features, weight = connected.inputs, connected.weight
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
    check_device("x", x, "the layer", weight.device)

    def on_gpu(spikes: SparseSpikes) -> bool:
        return not compiled and _dense_on_gpu(spikes, weight, measured)

    dense = is_dense(x, path, connected.break_even.currents, compiled, on_gpu)
    if isinstance(x, SparseSpikes):
        return x.to_dense() if dense else x
    return x if dense else ops.dense_to_sparse(x)


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
        super().__init__(check_int("in_features", in_features), check_int("out_features", out_features), bias=bias)
        self.path = check_path(path)
        self._measured = DeviceActivity()

    def forward(self, x: Union[torch.Tensor, SparseSpikes]) -> torch.Tensor:  # type: ignore[override]
        """``x``: SparseSpikes, or a dense ``[T, B, in]`` of any real dtype -> ``[T, B, out]``."""
        chosen = choose_path(x, self.weight, self.path, self._measured)
        if isinstance(chosen, SparseSpikes):
            return ops.sparse_linear(chosen, self.weight, self.bias)
        return nn.functional.linear(chosen.to(self.weight.dtype), self.weight, self.bias)

    def listed(self) -> "ListedLinear":
        """A layer of the synapses that are left, where ``torch.nn.utils.prune`` has been at work: those of its mask,
        or without one, as after ``prune.remove``, those whose weight is not zero. It has tensors of its own.

        .. code-block:: python

            prune.l1_unstructured(layer, "weight", amount=0.95)
            small = layer.listed()
        """
        weight, left = _pruned(self)
        synapses = left.nonzero().t()
        return _listed(self, synapses, weight.t()[left.t()])

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.path == "auto" else f", path={self.path!r}")


class ListedLinear(nn.Module):
    r"""``SparseLinear`` of which only some synapses exist: :math:`y_{tbo} = \sum_{(o, i)} w_{oi} s_{tbi} + b_o`.

    Memory is that of the synapses that exist, and so are gradients and an optimizer's state; work is that of the pairs
    of a spike and a synapse. The numbers are those of the dense layer with zeros elsewhere, up to the order of the
    additions. :meth:`SparseLinear.listed` makes one of a pruned layer; pruned again by ``torch.nn.utils.prune``, it
    gets shorter by :meth:`listed`.

    .. code-block:: python

        synapses = (torch.rand(128, 700) < 0.05).nonzero().t()
        layer = snn.ListedLinear(700, 128, synapses)

    Args:
        in_features: neurons that spike.
        out_features: size of the output.
        synapses: int ``[2, kept]``: the output and the input of each synapse, in any order, none twice.
        bias: whether to add a learnable bias.
        path: ``"sparse"``, ``"dense"`` (a matrix product with the zeros, for which the matrix is made in each call), or
            ``"auto"``, as :class:`SparseLinear` has it.

    Attributes:
        weight: ``[kept]``, in the order of the attribute ``synapses``.
        synapses: int64 ``[2, kept]`` by ascending input and, of one input, output; in the ``state_dict``.

    Raises:
        TypeError, ValueError: the message names the argument.
    """

    takes_whole_sequences = True  # in a MultiStep

    synapses: torch.Tensor

    def __init__(
        self, in_features: int, out_features: int, synapses: torch.Tensor, bias: bool = False, *, path: str = "auto"
    ) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.register_buffer("synapses", check_synapses(synapses, self._sizes))
        self.weight = nn.Parameter(torch.empty(self.synapses.shape[1], device=self.synapses.device))
        self.bias = nn.Parameter(torch.empty(out_features, device=self.synapses.device)) if bias else None
        self.path = check_path(path)
        self._measured = DeviceActivity()
        self.reset_parameters()

    @property
    def _sizes(self) -> List[int]:
        return [self.out_features, self.in_features]

    def reset_parameters(self) -> None:
        """Uniform, as ``nn.Linear``'s with as many inputs as an output has synapses on the average."""
        bound = math.sqrt(self.out_features / max(1, self.weight.numel()))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: DenseOrSparse) -> torch.Tensor:
        """``x``: SparseSpikes, or a dense ``[T, B, in]`` of any real dtype -> ``[T, B, out]``."""
        connected = Listed(self.weight, self.synapses, self._sizes)
        chosen = choose(x, connected, self.path, self._measured)
        if isinstance(chosen, SparseSpikes):
            return listed_linear(chosen, connected, self.bias)
        return nn.functional.linear(chosen.to(self.weight.dtype), connected.matrix(), self.bias)

    def listed(self) -> "ListedLinear":
        """A layer of the synapses that pruning has left of this one's, see :meth:`SparseLinear.listed`."""
        weight, left = _pruned(self)
        return _listed(self, self.synapses[:, left], weight[left])

    def to_linear(self) -> SparseLinear:
        """The layer as a matrix, zeros where no synapse is."""
        linear = SparseLinear(self.in_features, self.out_features, self.bias is not None, path=self.path)
        return _taken(linear, self, Listed(_pruned(self)[0], self.synapses, self._sizes).matrix())

    def _load_from_state_dict(
        self, state_dict: Dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: Any, more: Any, errors: Any
    ) -> None:
        found = state_dict.get(f"{prefix}synapses")
        if isinstance(found, torch.Tensor) and found.shape == self.synapses.shape:
            try:
                ordered = torch.equal(check_synapses(found, self._sizes), found)
            except (TypeError, ValueError) as error:
                errors.append(f"{prefix}synapses: {error}")
            else:
                if not ordered:
                    errors.append(f"{prefix}synapses must be by ascending input and, of one input, output")
            if errors:
                return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, more, errors)

    def extra_repr(self) -> str:
        bias, path = self.bias is not None, "" if self.path == "auto" else f", path={self.path!r}"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, synapses={self.weight.numel()}, "
            f"bias={bias}{path}"
        )


Layer = Union[SparseLinear, ListedLinear]


def _parameter(layer: Layer, name: str) -> Tuple[torch.Tensor, Optional[torch.Tensor], bool]:
    """A parameter, the mask that ``torch.nn.utils.prune`` has given it, and whether it is learnt.

    Under a mask the attribute of its name is that of the last call.
    """
    mask = getattr(layer, f"{name}_mask", None)
    given: torch.Tensor = getattr(layer, name if mask is None else f"{name}_orig")
    return given if mask is None else given * mask, mask, given.requires_grad


def _pruned(layer: Layer) -> Tuple[torch.Tensor, torch.Tensor]:
    """The weight, and as bool of its shape what its mask leaves; without one, what is not zero."""
    weight, mask, _ = _parameter(layer, "weight")
    return weight, (weight if mask is None else mask) != 0


def _listed(layer: Layer, synapses: torch.Tensor, weight: torch.Tensor) -> ListedLinear:
    listed = ListedLinear(layer.in_features, layer.out_features, synapses, layer.bias is not None, path=layer.path)
    return _taken(listed, layer, weight)


Taker = TypeVar("Taker", SparseLinear, ListedLinear)


def _taken(made: Taker, layer: Layer, weight: torch.Tensor) -> Taker:
    """``made`` with the weight, and the bias, mode, device and dtype of ``layer``; what is frozen there is here, and a
    mask of the bias goes with it."""
    made.to(weight).train(layer.training)
    made.weight.data.copy_(weight.detach())
    made.weight.requires_grad_(_parameter(layer, "weight")[2])
    if made.bias is not None:
        bias, mask, learnt = _parameter(layer, "bias")
        made.bias.data.copy_(bias.detach())
        made.bias.requires_grad_(learnt)
        if mask is not None:
            prune.custom_from_mask(made, "bias", mask)
    return made
