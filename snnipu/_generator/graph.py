"""Recording of a step function as a list of operations: the function runs on symbolic values instead of tensors.

The module imports no PyTorch, because ``setup.py`` runs it without.
"""

import linecache
import numbers
import os
import sys
from typing import Any, Callable, Dict, List, NoReturn, Optional, Set, Tuple, Union

_FIELDS = ("graph", "operation", "operands", "is_bool", "index", "line", "varies", "kind", "name", "gradient")
_HERE = os.path.dirname(os.path.abspath(__file__))

Operand = Union["Value", float]


class TraceError(TypeError):
    """An error of a step function that kernels cannot express. The message names the operation and the line."""


def _current_line() -> Tuple[str, int]:
    """Return file and line of the innermost frame outside this package and PyTorch, that of the step function."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        inside = os.path.dirname(os.path.abspath(file)) == _HERE
        if not inside and f"{os.sep}torch{os.sep}" not in file:
            return file, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return "?", 0


def _describe_line(line: Tuple[str, int]) -> str:
    text = linecache.getline(*line).strip()
    return f"line {line[1]} of {line[0]}" + (f", `{text}`" if text else "")


class Graph:
    """The operations of one step, in the order of their execution."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: List[Value] = []

    def add(self, operation: str, operands: Tuple[Operand, ...], is_bool: bool = False) -> "Value":
        value = Value(self, operation, operands, is_bool)
        self.values.append(value)
        return value

    def input(self, kind: str, name: str) -> "Value":
        """Add an input of the step; ``kind`` is ``x``, ``state``, ``parameter`` or a kind of gradient."""
        value = self.add("input", ())
        value.kind, value.name, value.varies = kind, name, kind != "parameter"
        return value

    def insert(self, before: "Value", operation: str, operands: Tuple[Operand, ...]) -> "Value":
        """Add an operation before the value ``before``."""
        value = self.add(operation, operands)
        self.values.insert(before.index, self.values.pop())
        for index, other in enumerate(self.values):
            other.index = index
        return value

    def refuse(self, what: str, line: Optional[Tuple[str, int]] = None) -> NoReturn:
        raise TraceError(f"{self.name}: {what} ({_describe_line(line or _current_line())})")


def _operator(operation: str, reflected: bool = False, is_bool: bool = False) -> Callable[["Value", Any], "Value"]:
    """Return a method of :class:`Value` that records ``operation`` of the value and another operand."""

    def method(self: "Value", other: Any) -> "Value":
        first, second = (other, self) if reflected else (self, other)
        return self._record(operation, first, second, is_bool=is_bool)

    return method


class Value:
    """The symbolic result of one operation. It has the operators and methods of a tensor that kernels support."""

    # With None, NumPy's scalars and arrays defer to the operators of this class.
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(self, graph: Graph, operation: str, operands: Tuple[Operand, ...], is_bool: bool) -> None:
        self.graph = graph
        self.operation = operation
        self.operands = operands
        self.is_bool = is_bool
        self.index = len(graph.values)
        self.line = _current_line()
        # True if the value depends on the input or on a state, so that it changes from step to step. Comparisons always
        # count, as kernels take numbers as parameters.
        self.varies: bool = is_bool or operation in ("spike", "stored") or any(value.varies for value in self.inputs)
        self.kind = ""
        self.name = ""
        self.gradient: Optional[Callable[[Value], Tuple[Any, ...]]] = None

    def __repr__(self) -> str:
        return f"<{self.graph.name}: {self.name or self.operation} {self.index}>"

    @property
    def inputs(self) -> Tuple["Value", ...]:
        return tuple(operand for operand in self.operands if isinstance(operand, Value))

    # ---- operations that are recorded

    def _operand(self, operand: Any, operation: str) -> Operand:
        """Check that ``operand`` is a number or a value of this graph; return it."""
        if isinstance(operand, Value):
            if operand.graph is not self.graph:
                self.graph.refuse(f"{operation} takes a value of another function's trace")
            if operand.is_bool:
                self.graph.refuse(f"{operation} takes a comparison: torch.where selects, .float() gives 1 or 0")
            return operand
        if isinstance(operand, numbers.Real):
            return float(operand)
        kind = type(operand).__name__
        self.graph.refuse(f"{operation} takes a {kind} from outside the step: make it a parameter or a number")

    def _record(self, operation: str, *operands: Any, is_bool: bool = False) -> "Value":
        return self.graph.add(operation, tuple(self._operand(o, operation) for o in operands), is_bool)

    def _record_bool(self, operation: str, *operands: Any) -> "Value":
        for operand in operands:
            if not (isinstance(operand, Value) and operand.is_bool):
                self.graph.refuse(f"{operation} takes comparisons only")
        return self.graph.add(operation, operands, True)

    __add__, __radd__ = _operator("add"), _operator("add", reflected=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", reflected=True)

    def __mul__(self, other: Any) -> "Value":
        # Multiplication is the only operation for which PyTorch converts a comparison to a number.
        if self.is_bool and not (isinstance(other, Value) and other.is_bool):
            return self.float() * other
        if isinstance(other, Value) and other.is_bool:
            other = other.float()
        return self._record("mul", self, other)

    def __rmul__(self, other: Any) -> "Value":
        if self.is_bool:
            return other * self.float()
        return self._record("mul", other, self)

    __truediv__ = _operator("div")

    def __rtruediv__(self, other: Any) -> "Value":
        # PyTorch computes number / tensor as the tensor's reciprocal times the number.
        return self._record("mul", self._record("reciprocal", self), other)

    def __neg__(self) -> "Value":
        return self._record("neg", self)

    def __pos__(self) -> "Value":
        return self

    def __abs__(self) -> "Value":
        return self._record("abs", self)

    def __pow__(self, exponent: Any) -> "Value":
        if not isinstance(exponent, numbers.Real):
            self.graph.refuse("pow takes an exponent that is a number, known when the step is written")
        return self._record("pow", self, exponent)

    __gt__, __ge__ = _operator("gt", is_bool=True), _operator("ge", is_bool=True)
    __lt__, __le__ = _operator("lt", is_bool=True), _operator("le", is_bool=True)
    __eq__ = _operator("eq", is_bool=True)  # type: ignore[assignment]
    __ne__ = _operator("ne", is_bool=True)  # type: ignore[assignment]

    def __and__(self, other: Any) -> "Value":
        return self._record_bool("logical_and", self, other)

    def __or__(self, other: Any) -> "Value":
        return self._record_bool("logical_or", self, other)

    def __invert__(self) -> "Value":
        return self._record_bool("logical_not", self)

    def clamp(self, min: Any = None, max: Any = None) -> "Value":
        for bound in (min, max):
            if isinstance(bound, Value):
                self.graph.refuse("clamp takes bounds that are numbers: torch.minimum and torch.maximum take tensors")
        if min is None and max is None:
            self.graph.refuse("clamp takes a bound")
        low = float("-inf") if min is None else min
        return self._record("clamp", self, low, float("inf") if max is None else max)

    def where(self, condition: Any, other: Any) -> "Value":
        """Return ``self`` where ``condition`` is true, else ``other``."""
        return select(condition, self, other)

    def float(self) -> "Value":
        if not self.is_bool:
            self.graph.refuse("float() changes a precision that is the neuron's")
        return self.graph.add("value_of", (self,))

    def to(self, dtype: Any) -> "Value":
        """Return a comparison as 1 or 0, and a number unchanged, since all values have the neuron's dtype."""
        if not self.is_bool and str(dtype) not in (self.dtype, "torch.float32", "torch.float64"):
            self.graph.refuse(f"to({dtype}) changes a precision that is the neuron's")
        return self.float() if self.is_bool else self

    def type_as(self, other: Any) -> "Value":
        return self.to(self.dtype)

    @property
    def dtype(self) -> str:
        return "the neuron's"

    def spike(self) -> "Value":
        """Return H(self), with the gradient of a surrogate."""
        if self.is_bool:
            self.graph.refuse("spike takes a comparison: it must be the membrane minus the threshold")
        return self.graph.add("spike", (self,))

    def with_gradient(self, operands: "Tuple[Value, ...]", gradient: "Callable[[Value], Tuple[Any, ...]]") -> "Value":
        """Return ``self`` as the result of an autograd function of ``operands``.

        ``gradient(g)`` returns the gradients of the operands; None is zero.
        """
        if self.is_bool or not self.varies:
            self.graph.refuse("the result of an autograd function must be a number for each neuron")
        value = self.graph.add("own", (self, *operands))
        value.gradient = gradient
        return value

    # ---- operations that are errors

    def __bool__(self) -> bool:
        self.graph.refuse("an `if`, `and`, `or` or `while` on a tensor's values: torch.where(condition, a, b) selects")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.graph.refuse(refusal_reason(name))

    def __setattr__(self, name: str, to: Any) -> None:
        if name not in _FIELDS:
            self.graph.refuse(f"setting `.{name}`: a step writes nothing in place")
        object.__setattr__(self, name, to)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        if name in FUNCTIONS:
            return FUNCTIONS[name](*args, **(kwargs or {}))
        value = _first_value((*args, *(kwargs or {}).values()))
        assert value is not None
        value.graph.refuse(refusal_reason(name))


def _first_value(arguments: Tuple[Any, ...]) -> Optional[Value]:
    for argument in arguments:
        if isinstance(argument, Value):
            return argument
        if isinstance(argument, (tuple, list)):
            value = _first_value(tuple(argument))
            if value is not None:
                return value
    return None


def select(condition: Any, first: Any = None, second: Any = None) -> Value:
    """Record ``torch.where``."""
    known = _first_value((condition, first, second))
    assert known is not None
    if not (isinstance(condition, Value) and condition.is_bool):
        known.graph.refuse("where takes a comparison as its condition")
    if first is None or second is None:
        known.graph.refuse("where without values gives indices: a step is elementwise")
    values = tuple(condition._operand(value, "where") for value in (first, second))
    return condition.graph.add("where", (condition, *values))


def refusal_reason(name: str) -> str:
    """Return the reason why a step cannot have the operation ``name``."""
    if name in _REDUCTIONS:
        return f"{name}() goes over several neurons: a step is one neuron's"
    if name in _PRODUCTS:
        return f"{name} is a product of matrices: a step is one neuron's, its input the product's result"
    if name in ("__getitem__", "__setitem__", "__iter__", "__len__") or name in _SHAPES:
        return f"{name} looks at the shape or at single elements: a step is one neuron's"
    if name.endswith("_") and not name.startswith("_"):
        return f"{name}() writes in place: a step returns its new states"
    if name in ("item", "tolist", "numpy", "__float__", "__int__", "__index__"):
        return f"{name} takes a number out of a tensor: kernels are compiled before there is data"
    return f"{name} is not one of the operations kernels are made of"


def _words(text: str) -> Set[str]:
    return set(text.split())


_REDUCTIONS = _words("sum mean prod max min amax amin argmax argmin any all norm std var cumsum softmax sort topk")
_PRODUCTS = _words("matmul mm bmm mv dot einsum linear conv1d conv2d conv3d addmm __matmul__ __rmatmul__")
_SHAPES = _words("shape size view reshape flatten permute transpose unsqueeze squeeze expand cat stack roll T dim")


def _forbid(name: str, message: str) -> Callable[..., Any]:
    def method(self: Value, *unused: Any) -> Any:
        self.graph.refuse(message)

    method.__name__ = name
    return method


for _name in ("add", "sub", "mul", "truediv", "pow", "and", "or", "matmul"):
    setattr(Value, f"__i{_name}__", _forbid(f"__i{_name}__", refusal_reason(f"i{_name}_")))
for _name in ("__getitem__", "__setitem__", "__iter__", "__len__", "__float__", "__int__", "__index__"):
    setattr(Value, _name, _forbid(_name, refusal_reason(_name)))
for _name in ("__matmul__", "__rmatmul__", "__rpow__", "__mod__", "__floordiv__", "__rfloordiv__", "__xor__"):
    setattr(Value, _name, _forbid(_name, refusal_reason(_name)))


def _both(name: str) -> Callable[..., Value]:
    def function(first: Any, second: Any) -> Value:
        value = _first_value((first, second))
        assert value is not None
        return value._record(name, first, second)

    return function


def _binary(name: str) -> Callable[..., Value]:
    reflected = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge", "eq": "eq", "ne": "ne"}.get(name, "r" + name)

    def function(first: Any, second: Any) -> Value:
        if isinstance(first, Value):
            return getattr(first, f"__{name}__")(second)
        return getattr(second, f"__{reflected}__")(first)

    return function


# Supported functions of the torch module, and methods of the same names.
FUNCTIONS: Dict[str, Callable[..., Any]] = {
    name: (lambda operation: lambda value: value._record(operation, value))(name)
    for name in sorted(_words("abs neg reciprocal exp log sqrt sigmoid tanh relu sin cos sign detach"))
}
FUNCTIONS.update({name: _both(name) for name in ("minimum", "maximum")})
FUNCTIONS.update({name: getattr(Value, name) for name in ("clamp", "to", "float", "type_as")})
FUNCTIONS["clip"] = FUNCTIONS["clamp"]
FUNCTIONS["clamp_min"] = lambda value, min: value.clamp(min=min)
FUNCTIONS["clamp_max"] = lambda value, max: value.clamp(max=max)
FUNCTIONS["square"] = lambda value: value**2
FUNCTIONS["pow"] = lambda value, exponent: value**exponent
FUNCTIONS["where"] = select
FUNCTIONS["masked_fill"] = lambda value, mask, number: select(mask, number, value)
FUNCTIONS["logical_not"] = lambda value: ~value
FUNCTIONS["logical_and"] = lambda value, other: value & other
FUNCTIONS["logical_or"] = lambda value, other: value | other
for _short in ("add", "sub", "mul", "truediv", "gt", "ge", "lt", "le", "eq", "ne"):
    FUNCTIONS[{"truediv": "div"}.get(_short, _short)] = _binary(_short)
for _name, _function in FUNCTIONS.items():
    if _name != "where" and _name not in vars(Value):
        setattr(Value, _name, _function)
