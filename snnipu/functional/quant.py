"""Quantized states: snnTorch's ``state_quant`` without a table of all differences.

snnTorch subtracts every level from every value and takes the first level of the least difference. Here the axis is cut
into cells of which each holds at most one border between two levels: the cell, computed from the value, tells the
border and the level on either side of it. The levels, and so the numbers, are snnTorch's bit by bit.
"""

import inspect
import weakref
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import snntorch.functional.quant
import torch

from snnipu._names import installed
from snnipu._route import is_exporting

_MAX_CELLS = 1 << 14
# The most levels that a compiled loop compares one by one.
_FEW = 16
# Values that the whole table of differences may hold at once where it is needed, 16 MiB of them in float32.
_TABLE = 1 << 22


class _Cells(NamedTuple):
    """Cells of the axis: equal ones or, with a ``centre``, smaller and smaller towards it, as floating point is.

    A value's cell never falls while the value rises: what is computed of values and of borders is the same.
    """

    number: int
    first: float
    scale: float  # cells per unit
    centre: Optional[float] = None
    shift: int = 0  # of the bits of a distance to the centre
    start: int = 0

    def of(self, x: torch.Tensor) -> torch.Tensor:
        if self.centre is None:
            return (x - self.first).mul_(self.scale).clamp_(0, self.number - 1).to(torch.int32)
        bits = _ordered_bits(x, self.centre).bitwise_right_shift_(self.shift)
        return bits.sub_(self.start).clamp_(0, self.number - 1)


def _ordered_bits(x: torch.Tensor, centre: float) -> torch.Tensor:
    """The distance to the centre as a whole number that rises with it."""
    distance = x - centre if centre else x + 0.0  # no negative zero
    kind, width = (torch.int64, 63) if x.dtype == torch.float64 else (torch.int32, 31)
    bits = distance.view(kind)
    return (bits >> width).bitwise_and_(torch.iinfo(kind).max).bitwise_xor_(bits)


def _candidates(levels: torch.Tensor) -> Iterator[_Cells]:
    first, span = float(levels[0]), float(levels[-1] - levels[0])
    count = 2 * levels.numel()
    while count <= _MAX_CELLS:
        yield _Cells(count, first, count / span)
        count *= 2
    densest = int(levels.diff().argmin())
    for centre in (float(levels[densest]), float(levels[densest + 1])):
        ends = _ordered_bits(levels[[0, -1]], centre).tolist()
        for shift in range(62, -1, -1) if levels.dtype == torch.float64 else range(30, -1, -1):
            start, stop = (end >> shift for end in ends)
            if stop - start + 1 > _MAX_CELLS:
                break
            yield _Cells(stop - start + 1, first, 0.0, centre, shift, start)


class _Search(NamedTuple):
    """How the levels are found on one device, for values of one dtype."""

    levels: torch.Tensor
    limit: Optional[float]  # from here on differences round to the same; None: anywhere
    borders: torch.Tensor  # the first value of each level but the first
    cells: Optional["_Cells"]  # None: no such cells, the borders are searched
    border: torch.Tensor  # in each cell, and the levels before and from it
    below: torch.Tensor
    above: torch.Tensor


def _by_table(x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """snnTorch's definition: the first level whose difference is least (the first of all for NaN)."""
    rows = max(1, _TABLE // max(1, levels.numel()))
    parts = [levels[torch.min(torch.abs(levels - part.unsqueeze(-1)), dim=-1)[1]] for part in x.split(rows)]
    return torch.cat(parts) if parts else levels.new_empty(0)


def _borders(levels: torch.Tensor) -> torch.Tensor:
    """Of each two neighbours the first value that is nearer to the upper one, as floating point computes it."""
    low, high = levels[:-1].clone(), levels[1:].clone()
    # `low` stays with the lower level and `high` with the upper one, until no value is between them.
    while True:
        middle = low + (high - low) / 2
        inside = (middle > low) & (middle < high)
        if not inside.any():
            return high
        upper = (levels[1:] - middle).abs() < (levels[:-1] - middle).abs()
        high = torch.where(inside & upper, middle, high)
        low = torch.where(inside & ~upper, middle, low)


def _search(levels: torch.Tensor, dtype: torch.dtype, device: torch.device) -> _Search:
    """The search over ``levels`` (on the CPU) for values of ``dtype``."""
    if installed.STATE_QUANT_KEEPS_DTYPE:
        levels = levels.to(dtype)
    wide = levels.to(torch.promote_types(levels.dtype, dtype))
    none = wide.new_empty(0)
    if wide.dtype not in (torch.float32, torch.float64):
        return _Search(levels.to(device), None, none, None, none, none, none)
    gaps = wide.diff()
    # Away from its level a value's differences to the next ones round to the same: snnTorch then takes the first.
    precision = torch.finfo(wide.dtype).eps
    regular = levels.numel() > 1 and bool((gaps > 0).all()) and bool(torch.isfinite(wide).all())
    if not regular or not bool((gaps[:-1] > 8 * precision * gaps[1:]).all()):
        return _Search(levels.to(device), None, none, None, none, none, none)
    limit = float(wide[-1]) + float(gaps[-1]) / (8 * precision)
    borders = _borders(wide)
    cells, border, below, above = None, none, none, none
    for cells in _candidates(wide):
        of_border = cells.of(borders).long()
        count = torch.bincount(of_border, minlength=cells.number)
        if int(count.max()) <= 1:
            before = count.cumsum(0) - count
            border = wide.new_full((cells.number,), float("inf"))
            border[of_border] = borders
            below, above = levels[before], levels[before + count]
            break
    else:
        cells = None
    parts = (levels, limit, borders, cells, border, below, above)
    return _Search._make(part.to(device) if isinstance(part, torch.Tensor) else part for part in parts)


def _nearest(x: torch.Tensor, search: _Search) -> torch.Tensor:
    """The level of each value, as snnTorch chooses it."""
    levels, limit = search.levels, search.limit
    dtype = torch.promote_types(levels.dtype, x.dtype)
    flat = x.reshape(-1).to(dtype)
    if limit is None or not dtype.is_floating_point:
        return _by_table(flat, levels).reshape(x.shape)
    usual = flat < limit
    if not bool(usual.all()):
        # NaN takes the first level; so does what is far above the last, where all differences are the same.
        odd = torch.nonzero(~usual).squeeze(-1)
        out = _nearest(flat.masked_fill(~usual, float(levels[0])), search)
        return out.index_put((odd,), _by_table(flat[odd], levels)).reshape(x.shape)
    if search.cells is None:
        return levels[torch.bucketize(flat, search.borders, right=True)].reshape(x.shape)
    cell = search.cells.of(flat)
    over = flat >= search.border.index_select(0, cell)
    return torch.where(over, search.above.index_select(0, cell), search.below.index_select(0, cell)).reshape(x.shape)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, search: _Search) -> torch.Tensor:  # type: ignore[override]
        return _nearest(x, search)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, None]:  # type: ignore[override]
        return grad, None


class _StraightThroughTable(_StraightThrough):
    """The same by a table, for tracers: no operation depends on a value, and tensors are the only arguments."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        flat = x.reshape(-1).to(torch.promote_types(levels.dtype, x.dtype))
        return _by_table(flat, levels).reshape(x.shape)


class _StraightThroughComparisons(_StraightThrough):
    """The same, level by level, as operations of a neuron's step that the compiler knows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, levels: str) -> torch.Tensor:  # type: ignore[override]
        first, *others = map(float, levels.split())
        least = (first - x).abs()
        out = torch.where(least < 0, x, first)  # which no distance is: the first level in x's dtype
        for level in others:
            distance = (level - x).abs()
            is_nearer = distance < least
            out, least = torch.where(is_nearer, level, out), torch.where(is_nearer, distance, least)
        return out


class StateQuant:
    r"""A quantizer: the nearest of ``levels``, the gradient passed on as it is (straight-through).

    .. math:: q(x) = L_k, \quad k = \min \operatorname*{arg\,min}_i |L_i - x|

    in floating point, as ``snntorch.functional.quant.state_quant`` computes it: of two levels as near the first, which
    is also the one for NaN and for values so far off that all differences round to the same.

    Args:
        levels: ``[L]``, the valid states.

    Raises:
        TypeError, ValueError: ``levels`` is not a floating tensor of one dimension with at least one element.
    """

    def __init__(self, levels: torch.Tensor) -> None:
        if not isinstance(levels, torch.Tensor):
            raise TypeError(f"levels must be a torch.Tensor, got {type(levels).__name__}")
        if levels.dim() != 1 or levels.numel() == 0 or not levels.is_floating_point():
            raise ValueError(f"levels must be a floating tensor [L], got {levels.dtype} of shape {tuple(levels.shape)}")
        self.levels = levels.detach()
        self._searches: Dict[Tuple[torch.dtype, torch.device], _Search] = {}
        few = levels.numel() <= _FEW and levels.dtype == torch.float32 and bool(levels.isfinite().all())
        self._text = " ".join(map(repr, levels.tolist())) if few else ""  # on which TorchDynamo has a guard
        self._last: Tuple[Callable[[], Optional[torch.Tensor]], int] = (lambda: None, 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The nearest level of every value, in x's shape; in the levels' dtype, or where snnTorch keeps it in x's."""
        if is_exporting():
            dtype = x.dtype if installed.STATE_QUANT_KEEPS_DTYPE else self.levels.dtype
            return _StraightThroughTable.apply(x, self.levels.to(x.device, dtype))  # type: ignore[no-any-return]
        if self._text and torch.compiler.is_compiling() and x.dtype == torch.float32:
            return _StraightThroughComparisons.apply(x, self._text)  # type: ignore[no-any-return]
        last, version = self._last
        if last() is x and x._version == version:
            return x  # levels stay as they are: snnTorch quantizes a membrane once more before it fires
        key = (x.dtype, x.device)
        if key not in self._searches:
            self._searches[key] = _search(self.levels.cpu(), x.dtype, x.device)
        out: torch.Tensor = _StraightThrough.apply(x, self._searches[key])
        self._last = (weakref.ref(out), out._version)
        return out

    def __getstate__(self) -> Dict[str, Any]:
        return {"levels": self.levels}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__init__(state["levels"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"StateQuant({self.levels.numel()} levels, {float(self.levels[0]):g} to {float(self.levels[-1]):g})"


def as_state_quant(state_quant: Any) -> Any:
    """:class:`StateQuant` for what snnTorch's ``state_quant`` returned; anything else as it is."""
    if not inspect.isfunction(state_quant) or state_quant.__module__ != snntorch.functional.quant.__name__:
        return state_quant
    levels = inspect.getclosurevars(state_quant).nonlocals.get("levels")
    return StateQuant(levels) if isinstance(levels, torch.Tensor) else state_quant


def state_quant(
    num_bits: int = 8,
    uniform: bool = True,
    thr_centered: bool = True,
    threshold: float = 1,
    lower_limit: float = 0,
    upper_limit: float = 0.2,
    multiplier: Optional[float] = None,
) -> StateQuant:
    """A quantizer for a neuron's ``state_quant``: snnTorch's arguments, levels, numbers and gradient.

    See ``snntorch.functional.quant.state_quant`` for the arguments, and :class:`StateQuant`.
    """
    quantizer = as_state_quant(
        snntorch.functional.quant.state_quant(
            num_bits, uniform, thr_centered, threshold, lower_limit, upper_limit, multiplier
        )
    )
    assert isinstance(quantizer, StateQuant)
    return quantizer


def __getattr__(name: str) -> Any:
    return getattr(snntorch.functional.quant, name)
