"""Marks in the graph of a loop's body, and the reason for which a loop is not compiled."""

from typing import Any, Optional

import torch
from torch.fx import Node

from snnipu.compiler import nodes
from snnipu.compiler.reasons import Reason

CLOCK = "snnipu_clock"
# The clock is the step's number plus this: PyTorch traces 0 and 1 as constants.
OFFSET = 2


class Refused(Exception):
    """Raised with the reason if a loop cannot be compiled.

    Attributes:
        note: the reason with the program's lines that cause it; None if they are unknown.
    """

    def __init__(self, why: str, note: Optional[Reason] = None) -> None:
        super().__init__(why)
        self.note = note


class Peel(Exception):
    """The first step differs from later steps, and has to run in Python."""


class Relook(Exception):
    """The body sets other attributes or items than it did in the observed steps."""

    def __str__(self) -> str:
        return "it sets other attributes, or items of other objects, than in its first steps"


class Recount(Exception):
    """The counter with this number has no constant increment."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def clock(value: torch.Tensor) -> torch.Tensor:
    """Mark a tensor whose first size is the clock."""
    return value


def carried(value: torch.Tensor, number: int) -> torch.Tensor:
    """Mark a tensor of the previous step."""
    # PyTorch knows the number in an input without dimensions, and would trace a condition on it for all steps.
    return value.clone() if value.dim() == 0 else value


def result(value: torch.Tensor, number: int) -> torch.Tensor:
    """Mark the new value of the carried tensor with this number."""
    return value


def kept(value: torch.Tensor, number: int) -> torch.Tensor:
    """Mark a tensor whose value after the last step the program reads."""
    return value


def counted(value: torch.Tensor, number: int) -> torch.Tensor:
    """Mark a number that no step may change, as a tensor."""
    return value


def collected(value: torch.Tensor, number: int) -> torch.Tensor:
    """Mark a tensor whose values at all steps the program reads."""
    return value


MARKS = (clock, carried, result, kept, counted, collected)
nodes.FRESH_MARKS.add(carried)


def unmarked(node: Any) -> Any:
    """Return the node below marks of results and records."""
    while isinstance(node, Node) and node.target in (result, kept, counted, collected):
        node = node.args[0]
    return node


def changed_input(node: Node) -> Optional[Node]:
    """Return the input that a call changes in place and returns, or None."""
    while node.op.startswith("call") and node.args and nodes.changed_by(node) == [node.args[0]]:
        node = node.args[0]  # type: ignore[assignment]
        if node.op == "placeholder":
            return node
    return None


def is_number(node: Node) -> bool:
    """Return True if the node's value is a Python number, constant or symbolic."""
    return isinstance(nodes.value_of(node), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))
