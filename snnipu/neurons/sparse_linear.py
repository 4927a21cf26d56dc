"""``nn.Linear`` on spikes, complete or pruned, and the choice between a layer's sparse and dense product."""

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
from snnipu.spikes import DenseOrSparse, SparseSpikes

PATHS = ("auto", "sparse", "dense")


def check_path(path: object) -> str:
    """Return ``path``; raise if it is none of ``PATHS``."""
    if path not in PATHS:
        raise ValueError(f"path must be 'auto', 'sparse' or 'dense', got {path!r}")
    return str(path)


def _is_dense_on_gpu(x: SparseSpikes, weight: torch.Tensor, measured: DeviceActivity) -> bool:
    """Return True if the matrix product is faster on a GPU. The host does not wait for ``x``."""
    if backend_for("sparse_linear", x.device) != "triton":
        return True
    limit = break_even(weight.dtype)
    # If the slots alone limit the activity enough, no measurement is needed.
    return x.capacity > limit * x.num_neurons and measured.activity(x) > limit


def choose_path(x: DenseOrSparse, weight: torch.Tensor, path: str, measured: DeviceActivity) -> DenseOrSparse:
    """Run :func:`choose_form` for a fully connected layer with this weight."""
    return choose_form(x, FullyConnected(weight), path, measured)


def input_argument(x: DenseOrSparse, in_features: int, weight: torch.Tensor) -> DenseOrSparse:
    """Check the input of a layer with this weight; return it, dense integers in the dtype of the computation."""
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
    return x


def choose_form(x: DenseOrSparse, connected: Connection, path: str, measured: DeviceActivity) -> DenseOrSparse:
    """Return the input of a layer in the form whose product is to be computed: a dense tensor, or spikes.

    :func:`~snnipu.ops._break_even.is_dense` decides. On CUDA it reads the activity of earlier calls from ``measured``.

    Args:
        x: SparseSpikes, or a dense ``[T, B, in]`` of any real dtype. In bool, True is a spike of value 1; integers are
            the values of spikes.
        connected: the layer's connection.
        path: ``"auto"``, ``"sparse"`` or ``"dense"``.
        measured: the layer's measurements of activity.
    """
    weight = connected.weight
    compiled = popart.uses_operator("event-driven layers", "SparseLinear") or is_compiling()
    x = input_argument(x, connected.inputs, weight)

    def on_gpu(spikes: SparseSpikes) -> bool:
        return not compiled and _is_dense_on_gpu(spikes, weight, measured)

    dense = is_dense(x, path, connected.break_even.currents, compiled, on_gpu)
    if isinstance(x, SparseSpikes):
        return x.to_dense() if dense else x
    return x if dense else ops.dense_to_sparse(x)


def init_like_linear(weight: torch.Tensor, bias: Optional[torch.Tensor]) -> None:
    """Draw the initial values of ``nn.Linear``."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(weight[0].numel())
        nn.init.uniform_(bias, -bound, bound)


class SparseLinear(nn.Linear):
    r"""``nn.Linear`` for spikes. It reads only the weights of neurons that spiked.

    .. math:: y_{tbo} = \sum_i W_{oi} s_{tbi} + b_o

    :math:`s` are the values of the spikes, 0 without a spike. :func:`snnipu.ops.sparse_linear` defines the gradients.
    The ``state_dict`` equals that of ``nn.Linear``.

    .. code-block:: python

        layer = snn.SparseLinear(700, 128)
        y = layer(spikes)                # SparseSpikes of 700 neurons, or a dense [T, B, 700] -> [T, B, 128]

    Args:
        in_features: neurons of the input.
        out_features: neurons of the output.
        bias: if True, the layer has a learnable bias.
        path: ``"sparse"``: products of spikes; ``"dense"``: one matrix product over all time steps; ``"auto"``: the
            faster one at the measured activity of the input. On CUDA, ``"auto"`` reads the activity a few calls earlier
            and keeps dense inputs dense.

    Attributes:
        weight: ``[out, in]``.
        bias: ``[out]``, or None.

    Raises:
        TypeError, ValueError: wrong type or value; the message names the argument.

    Source: ``nn.Linear``, and :func:`snnipu.ops.sparse_linear`.
    """

    takes_whole_sequences = True  # in a MultiStep

    def __init__(self, in_features: int, out_features: int, bias: bool = False, *, path: str = "auto") -> None:
        super().__init__(check_int("in_features", in_features), check_int("out_features", out_features), bias=bias)
        self.path = check_path(path)
        self._measured = DeviceActivity()

    def forward(self, x: DenseOrSparse) -> torch.Tensor:  # type: ignore[override]
        """Return the output ``[T, B, out]``.

        Args:
            x: SparseSpikes of ``in_features`` neurons, or a dense ``[T, B, in]`` of any real dtype.

        Raises:
            TypeError, ValueError: wrong type, shape or device.
        """
        chosen = choose_path(x, self.weight, self.path, self._measured)
        if isinstance(chosen, SparseSpikes):
            return ops.sparse_linear(chosen, self.weight, self.bias)
        return nn.functional.linear(chosen.to(self.weight.dtype), self.weight, self.bias)

    def listed(self) -> "ListedLinear":
        """Return a :class:`ListedLinear` of the synapses that ``torch.nn.utils.prune`` has left, with copied tensors.

        The mask of the weight gives the synapses. Without a mask, as after ``prune.remove``, they are those with a
        nonzero weight.

        .. code-block:: python

            prune.l1_unstructured(layer, "weight", amount=0.95)
            small = layer.listed()
        """
        weight, left = _pruned(self)
        synapses = left.nonzero().t()
        return _listed_layer(self, synapses, weight.t()[left.t()])

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.path == "auto" else f", path={self.path!r}")


class ListedLinear(nn.Module):
    r"""A linear layer for spikes with a list of synapses in place of a weight matrix.

    .. math:: y_{tbo} = \sum_{(o, i)} w_{oi} s_{tbi} + b_o

    The sum runs over the listed synapses. Weights, gradients and optimizer states have one element for each of them.
    The work is proportional to the pairs of a spike and a synapse. The results equal those of a :class:`SparseLinear`
    with zeros elsewhere, up to the order of additions. :meth:`SparseLinear.listed` turns a pruned layer into this one.
    After further pruning by ``torch.nn.utils.prune``, :meth:`listed` returns a shorter list.

    .. code-block:: python

        synapses = (torch.rand(128, 700) < 0.05).nonzero().t()
        layer = snn.ListedLinear(700, 128, synapses)

    Args:
        in_features: neurons of the input.
        out_features: neurons of the output.
        synapses: int tensor ``[2, kept]``: output and input of each synapse, in any order, without duplicates.
        bias: if True, the layer has a learnable bias.
        path: ``"sparse"``: products of spikes; ``"dense"``: a matrix product with the zeros, whose matrix each call
            builds; ``"auto"``: the faster one at the measured activity of the input.

    Attributes:
        weight: ``[kept]``, in the order of the attribute ``synapses``.
        bias: ``[out]``, or None.
        synapses: int64 ``[2, kept]``, sorted by input and then by output; part of the ``state_dict``.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: :func:`snnipu.ops.sparse_linear`, whose gradients it has.
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
        """Draw weight and bias as ``nn.Linear`` does whose number of inputs is the mean number of synapses a neuron."""
        bound = math.sqrt(self.out_features / max(1, self.weight.numel()))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: DenseOrSparse) -> torch.Tensor:
        """Return the output ``[T, B, out]``.

        Args:
            x: SparseSpikes of ``in_features`` neurons, or a dense ``[T, B, in]`` of any real dtype.

        Raises:
            TypeError, ValueError: wrong type, shape or device.
        """
        connected = Listed(self.weight, self.synapses, self._sizes)
        chosen = choose_form(x, connected, self.path, self._measured)
        if isinstance(chosen, SparseSpikes):
            return listed_linear(chosen, connected, self.bias)
        return nn.functional.linear(chosen.to(self.weight.dtype), connected.matrix(), self.bias)

    def listed(self) -> "ListedLinear":
        """Return a layer of the synapses that pruning has left, as :meth:`SparseLinear.listed`."""
        weight, left = _pruned(self)
        return _listed_layer(self, self.synapses[:, left], weight[left])

    def to_linear(self) -> SparseLinear:
        """Return a :class:`SparseLinear` with the same weights, and zeros elsewhere."""
        linear = SparseLinear(self.in_features, self.out_features, self.bias is not None, path=self.path)
        return _copy_into(linear, self, Listed(_pruned(self)[0], self.synapses, self._sizes).matrix())

    def _load_from_state_dict(
        self, state_dict: Dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: Any, more: Any, errors: Any
    ) -> None:
        saved = state_dict.get(f"{prefix}synapses")
        if isinstance(saved, torch.Tensor) and saved.shape == self.synapses.shape:
            try:
                ordered = torch.equal(check_synapses(saved, self._sizes), saved)
            except (TypeError, ValueError) as error:
                errors.append(f"{prefix}synapses: {error}")
            else:
                if not ordered:
                    errors.append(f"{prefix}synapses must be sorted by input, and by output for one input")
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
    """Return a parameter, its mask of ``torch.nn.utils.prune`` or None, and True if the parameter is learnt.

    With a mask, the parameter is ``name_orig``: the attribute ``name`` is the product of the last call.
    """
    mask = getattr(layer, f"{name}_mask", None)
    value: torch.Tensor = getattr(layer, name if mask is None else f"{name}_orig")
    return value if mask is None else value * mask, mask, value.requires_grad


def _pruned(layer: Layer) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the weight, and a bool tensor of its shape: True for the synapses that pruning has left."""
    weight, mask, _ = _parameter(layer, "weight")
    return weight, (weight if mask is None else mask) != 0


def _listed_layer(layer: Layer, synapses: torch.Tensor, weight: torch.Tensor) -> ListedLinear:
    listed = ListedLinear(layer.in_features, layer.out_features, synapses, layer.bias is not None, path=layer.path)
    return _copy_into(listed, layer, weight)


Target = TypeVar("Target", SparseLinear, ListedLinear)


def _copy_into(target: Target, layer: Layer, weight: torch.Tensor) -> Target:
    """Copy ``weight`` and the bias of ``layer`` into ``target``; return ``target``.

    It also takes mode, device, dtype, ``requires_grad`` and the bias's mask from ``layer``.
    """
    target.to(weight).train(layer.training)
    target.weight.data.copy_(weight.detach())
    target.weight.requires_grad_(_parameter(layer, "weight")[2])
    if target.bias is not None:
        bias, mask, learnt = _parameter(layer, "bias")
        target.bias.data.copy_(bias.detach())
        target.bias.requires_grad_(learnt)
        if mask is not None:
            prune.custom_from_mask(target, "bias", mask)
    return target
