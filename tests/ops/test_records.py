"""Operators whose schema is made from records."""

from typing import List, NamedTuple, Optional

import torch

from snnipu.ops import _records, sparse_conv_lif_sequence, sparse_lif_sequence  # noqa: F401  they register operators
from snnipu.ops._library import REGISTERED

FORWARD = (
    "Tensor ids, Tensor values, Tensor counts, Tensor weight, Tensor? bias, {}Tensor beta, Tensor threshold, {}"
    "float? grad_threshold, float input_scale, int capacity, bool rotate, int reset, int delay, bool store_mem"
)
MADE = "Tensor ids_out, Tensor values_out, Tensor counts_out, {}, Tensor slot_mem, Tensor fired, Tensor mem"
BACKWARD = (
    "Tensor grad, Tensor ids, Tensor values, Tensor counts, Tensor weight, {}Tensor beta, Tensor threshold, {}"
    "float input_scale, int reset, int delay, Tensor ids_out, Tensor counts_out, Tensor slot_mem, Tensor fired, "
    "Tensor mem, int surrogate, float surrogate_a, float surrogate_b, bool need_values, bool need_weight, "
    "bool need_bias, {}bool need_beta, bool need_threshold"
)
GRADIENTS = "Tensor grad_values, Tensor grad_weight, Tensor grad_bias, {}Tensor grad_beta, Tensor grad_threshold"
RECURRENT, GEOMETRY = "Tensor? recurrent_weight, ", "int[] geometry, "
LAYERS = {
    "sparse_lif_sequence_fwd": (FORWARD.format(RECURRENT, ""), MADE.format("Tensor dropped")),
    "sparse_conv_lif_sequence_fwd": (FORWARD.format("", GEOMETRY), MADE.format("Tensor dropped")),
    "sparse_conv_lif_pool_fwd": (
        FORWARD.format("", GEOMETRY) + ", int[] window",
        MADE.format("Tensor source, Tensor neuron_counts"),
    ),
    "sparse_lif_sequence_bwd": (
        BACKWARD.format(RECURRENT, "", "bool need_recurrent, "),
        GRADIENTS.format("Tensor grad_recurrent, "),
    ),
    "sparse_conv_lif_sequence_bwd": (BACKWARD.format("", GEOMETRY, ""), GRADIENTS.format("")),
}


def test_a_layers_schemas():
    """Schemas are an interface: exported programs call operators by position."""
    for name, (arguments, results) in LAYERS.items():
        assert str(getattr(torch.ops.snnipu, name).default._schema) == f"snnipu::{name}({arguments}) -> ({results})"


class Taken(NamedTuple):
    weight: torch.Tensor
    scale: float
    sizes: List[int]
    offset: Optional[torch.Tensor]


class Given(NamedTuple):
    first: Optional[torch.Tensor]
    second: Optional[torch.Tensor]
    third: Optional[torch.Tensor]


def test_what_is_left_out_is_none():
    seen = []

    def function(record):
        seen.append(record)
        return Given(None, record.weight * record.scale, record.weight)

    operator = _records.Operator("test_records_fwd", Taken, Given, without=["sizes", "third"])
    assert operator.schema == (
        "test_records_fwd(Tensor weight, float scale, Tensor? offset) -> (Tensor first, Tensor second)"
    )
    weight = torch.ones(2)
    first, second = operator.kernel(function)(weight, 3.0, None)
    assert seen == [Taken(weight, 3.0, None, None)]
    assert first.shape == (0,)
    assert torch.equal(second, 3 * weight)
    assert "test_records_fwd" not in REGISTERED
