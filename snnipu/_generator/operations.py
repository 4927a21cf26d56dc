"""The table of operations: each as C++ on lanes, as Triton, as a function of tensors, and with its derivative.

A derivative is a function of the result's gradient, the result and the operands. It returns the operands' gradients;
None is zero. The formulas are those of PyTorch's ``derivatives.yaml``, so gradients equal PyTorch's bit by bit.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from .graph import Value, select


class Operation(NamedTuple):
    cpp: str
    triton: str
    tensor: Callable[..., Any]
    derivative: Optional[Callable[..., Tuple[Any, ...]]]


def _where(condition: Any, first: Any, second: Any) -> Any:
    numbers = [value if hasattr(value, "where") else None for value in (first, second)]
    like = next((value for value in numbers if value is not None), None)
    if like is None:
        return first * condition + second * ~condition
    first, second = (
        like.new_full((), value) if number is None else value for value, number in zip((first, second), numbers)
    )
    return first.where(condition, second)


def _tie(g: Value, a: Any, b: Any, larger: Value) -> Value:
    """Return ``g`` where ``larger``, half of it where a equals b, and 0 elsewhere."""
    return select(a == b, g / 2, select(larger, g, 0.0))


_O = Operation
OPERATIONS: Dict[str, Operation] = {
    "add": _O("{0} + {1}", "{0} + {1}", lambda a, b: a + b, lambda g, y, a, b: (g, g)),
    "sub": _O("{0} - {1}", "{0} - {1}", lambda a, b: a - b, lambda g, y, a, b: (g, -g)),
    "mul": _O("{0} * {1}", "{0} * {1}", lambda a, b: a * b, lambda g, y, a, b: (g * b, g * a)),
    "div": _O("{0} / {1}", "{0} / {1}", lambda a, b: a / b, lambda g, y, a, b: (g / b, -g * ((a / b) / b))),
    "reciprocal": _O("reciprocal({0})", "1.0 / {0}", lambda a: a.reciprocal(), lambda g, y, a: (-g * (y * y),)),
    "neg": _O("-{0}", "-{0}", lambda a: -a, lambda g, y, a: (-g,)),
    "abs": _O("abs({0})", "tl.abs({0})", lambda a: a.abs(), lambda g, y, a: (g * a.sign(),)),
    "sign": _O("sign({0})", "_sign({0})", lambda a: a.sign(), lambda g, y, a: (None,)),
    "clamp": _O(
        "clamp({0}, {1}, {2})",
        "_clamp({0}, {1}, {2})",
        lambda a, low, high: a.clamp(low, high),
        lambda g, y, a, low, high: (select((a >= low) & (a <= high), g, 0.0), None, None),
    ),
    "relu": _O("relu({0})", "_relu({0})", lambda a: a.relu(), lambda g, y, a: (select(y > 0, g, 0.0),)),
    "exp": _O("exp({0})", "tl.exp({0})", lambda a: a.exp(), lambda g, y, a: (g * y,)),
    "log": _O("log({0})", "tl.log({0})", lambda a: a.log(), lambda g, y, a: (g / a,)),
    "sqrt": _O("sqrt({0})", "tl.sqrt({0})", lambda a: a.sqrt(), lambda g, y, a: (g / (2 * y),)),
    "sigmoid": _O("sigmoid({0})", "_sigmoid({0})", lambda a: a.sigmoid(), lambda g, y, a: (g * (1 - y) * y,)),
    "tanh": _O("tanh({0})", "_tanh({0})", lambda a: a.tanh(), lambda g, y, a: (g * (1 - y * y),)),
    "sin": _O("sin({0})", "tl.sin({0})", lambda a: a.sin(), lambda g, y, a: (g * a.cos(),)),
    "cos": _O("cos({0})", "tl.cos({0})", lambda a: a.cos(), lambda g, y, a: (g * -a.sin(),)),
    "pow": _O(
        "power({0}, {n1})",
        "",
        lambda a, n: a**n,
        lambda g, y, a, n: (g * (n * a ** (n - 1)) if n else None, None),
    ),
    "minimum": _O(
        "minimum({0}, {1})",
        "_minimum({0}, {1})",
        lambda a, b: a.minimum(b),
        lambda g, y, a, b: (_tie(g, a, b, a < b), _tie(g, a, b, b < a)),
    ),
    "maximum": _O(
        "maximum({0}, {1})",
        "_maximum({0}, {1})",
        lambda a, b: a.maximum(b),
        lambda g, y, a, b: (_tie(g, a, b, a > b), _tie(g, a, b, b > a)),
    ),
    "where": _O(
        "{0} ? {1} : {2}",
        "tl.where({0}, {1}, {2})",
        _where,
        lambda g, y, c, a, b: (None, select(c, g, 0.0), select(c, 0.0, g)),
    ),
    # The result of `Value.with_gradient`, which sets the derivative.
    "own": _O("{0}", "{0}", lambda a, *unused: a, None),
    "detach": _O("{0}", "{0}", lambda a: a.detach(), None),
    "value_of": _O("{0} ? {one} : {zero}", "tl.where({0}, {one}, {zero})", lambda a: a.float(), None),
    "gt": _O("{0} > {1}", "{0} > {1}", lambda a, b: a > b, None),
    "ge": _O("{0} >= {1}", "{0} >= {1}", lambda a, b: a >= b, None),
    "lt": _O("{0} < {1}", "{0} < {1}", lambda a, b: a < b, None),
    "le": _O("{0} <= {1}", "{0} <= {1}", lambda a, b: a <= b, None),
    "eq": _O("{0} == {1}", "{0} == {1}", lambda a, b: a == b, None),
    "ne": _O("{0} != {1}", "{0} != {1}", lambda a, b: a != b, None),
    "logical_and": _O("{0} & {1}", "{0} & {1}", lambda a, b: a & b, None),
    "logical_or": _O("{0} | {1}", "{0} | {1}", lambda a, b: a | b, None),
    "logical_not": _O("~{0}", "{0} == 0", lambda a: ~a, None),
}
