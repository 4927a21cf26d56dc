"""Quantized states: snnTorch's ``state_quant`` without a table of all differences.

snnTorch subtracts every level from every value, and takes the first level with the smallest difference. This module
divides the axis into cells with at most one border between two levels each. The cell of a value follows from the value
by arithmetic. It has one border, a level below and a level above. Results equal snnTorch's bit by bit.
"""

import inspect
import weakref
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import snntorch.functional.quant
import torch

from snnipu._names import installed
from snnipu._route import is_exporting

_MAX_CELLS = 1 << 14
# A compiled loop compares at most so many levels one by one.
_MAX_COMPARED = 16
# Elements of a table of differences, if one is needed: 16 MiB in float32.
_TABLE_ELEMENTS = 1 << 22


class _LevelCells(NamedTuple):
    """The cells of the axis: of equal size or, with a ``centre``, smaller towards it like floating-point numbers.

    A cell's index is a monotonic function of the value, so that values and borders may be compared by cell.
    """

    number: int
    first: float
    scale: float  # cells per unit
    centre: Optional[float] = None
    shift: int = 0  # right shift of the bits of a distance from the centre
    start: int = 0

    def indices(self, x: torch.Tensor) -> torch.Tensor:
        """Return the index of each value's cell, int32 (or int64 for float64 values with a centre)."""
        if self.centre is None:
            return (x - self.first).mul_(self.scale).clamp_(0, self.number - 1).to(torch.int32)
        bits = _ordered_bits(x, self.centre).bitwise_right_shift_(self.shift)
        return bits.sub_(self.start).clamp_(0, self.number - 1)


def _ordered_bits(x: torch.Tensor, centre: float) -> torch.Tensor:
    """Return the signed distance from the centre as an integer that increases with it."""
    distance = x - centre if centre else x + 0.0  # no negative zero
    kind, width = (torch.int64, 63) if x.dtype == torch.float64 else (torch.int32, 31)
    bits = distance.view(kind)
    return (bits >> width).bitwise_and_(torch.iinfo(kind).max).bitwise_xor_(bits)


def _candidates(levels: torch.Tensor) -> Iterator[_LevelCells]:
    """Yield divisions of the axis, each finer than the one before: equal cells first, then cells around a centre."""
    first, span = float(levels[0]), float(levels[-1] - levels[0])
    count = 2 * levels.numel()
    while count <= _MAX_CELLS:
        yield _LevelCells(count, first, count / span)
        count *= 2
    densest = int(levels.diff().argmin())
    for centre in (float(levels[densest]), float(levels[densest + 1])):
        ends = _ordered_bits(levels[[0, -1]], centre).tolist()
        for shift in range(62, -1, -1) if levels.dtype == torch.float64 else range(30, -1, -1):
            start, stop = (end >> shift for end in ends)
            if stop - start + 1 > _MAX_CELLS:
                break
            yield _LevelCells(stop - start + 1, first, 0.0, centre, shift, start)


class _LevelSearch(NamedTuple):
    """The tensors for finding levels, on one device and for values of one dtype."""

    levels: torch.Tensor
    limit: Optional[float]  # from this value on, differences may round to equal numbers; None: everywhere
    borders: torch.Tensor  # the smallest value of each level but the first
    cells: Optional["_LevelCells"]  # None: a binary search over the borders
    border: torch.Tensor  # the border in each cell, the level below it, and the level from it on
    below: torch.Tensor
    above: torch.Tensor


def _by_table(x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Return the levels by snnTorch's definition: the first with the smallest difference, the very first for NaN."""
    rows = max(1, _TABLE_ELEMENTS // max(1, levels.numel()))
    parts = [levels[torch.min(torch.abs(levels - part.unsqueeze(-1)), dim=-1)[1]] for part in x.split(rows)]
    return torch.cat(parts) if parts else levels.new_empty(0)


def _borders(levels: torch.Tensor) -> torch.Tensor:
    """Return for each two neighbouring levels the smallest value that is nearer to the upper one in floating point."""
    low, high = levels[:-1].clone(), levels[1:].clone()
    # Bisection: `low` is nearer to the lower level, `high` to the upper one, until no value is between them.
    while True:
        middle = low + (high - low) / 2
        inside = (middle > low) & (middle < high)
        if not inside.any():
            return high
        upper = (levels[1:] - middle).abs() < (levels[:-1] - middle).abs()
        high = torch.where(inside & upper, middle, high)
        low = torch.where(inside & ~upper, middle, low)


def _search(levels: torch.Tensor, dtype: torch.dtype, device: torch.device) -> _LevelSearch:
    """Return the search for values of ``dtype`` among ``levels``, which are on the CPU."""
    if installed.STATE_QUANT_KEEPS_DTYPE:
        levels = levels.to(dtype)
    wide = levels.to(torch.promote_types(levels.dtype, dtype))
    none = wide.new_empty(0)
    if wide.dtype not in (torch.float32, torch.float64):
        return _LevelSearch(levels.to(device), None, none, None, none, none, none)
    gaps = wide.diff()
    # Far above all levels the differences round to equal numbers, and snnTorch takes the first of these levels.
    precision = torch.finfo(wide.dtype).eps
    regular = levels.numel() > 1 and bool((gaps > 0).all()) and bool(torch.isfinite(wide).all())
    if not regular or not bool((gaps[:-1] > 8 * precision * gaps[1:]).all()):
        return _LevelSearch(levels.to(device), None, none, None, none, none, none)
    limit = float(wide[-1]) + float(gaps[-1]) / (8 * precision)
    borders = _borders(wide)
    cells, border, below, above = None, none, none, none
    for cells in _candidates(wide):
        of_border = cells.indices(borders).long()
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
    return _LevelSearch._make(part.to(device) if isinstance(part, torch.Tensor) else part for part in parts)


def _nearest(x: torch.Tensor, search: _LevelSearch) -> torch.Tensor:
    """Return the level of each value that snnTorch chooses."""
    levels, limit = search.levels, search.limit
    dtype = torch.promote_types(levels.dtype, x.dtype)
    flat = x.reshape(-1).to(dtype)
    if limit is None or not dtype.is_floating_point:
        return _by_table(flat, levels).reshape(x.shape)
    usual = flat < limit
    if not bool(usual.all()):
        # NaN takes the first level. Values far above the last level take the first one of equal rounded difference.
        odd = torch.nonzero(~usual).squeeze(-1)
        out = _nearest(flat.masked_fill(~usual, float(levels[0])), search)
        return out.index_put((odd,), _by_table(flat[odd], levels)).reshape(x.shape)
    if search.cells is None:
        return levels[torch.bucketize(flat, search.borders, right=True)].reshape(x.shape)
    cell = search.cells.indices(flat)
    over = flat >= search.border.index_select(0, cell)
    return torch.where(over, search.above.index_select(0, cell), search.below.index_select(0, cell)).reshape(x.shape)


class _StraightThrough(torch.autograd.Function):
    """The levels of values; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, search: _LevelSearch) -> torch.Tensor:  # type: ignore[override]
        return _nearest(x, search)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, None]:  # type: ignore[override]
        return grad, None


class _StraightThroughTable(_StraightThrough):
    """The same by a table, for tracers: operations do not depend on values, and all arguments are tensors."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        flat = x.reshape(-1).to(torch.promote_types(levels.dtype, x.dtype))
        return _by_table(flat, levels).reshape(x.shape)


class _StraightThroughComparisons(_StraightThrough):
    """The same, level by level, by operations that the compiler supports in a neuron's step."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, levels: str) -> torch.Tensor:  # type: ignore[override]
        first, *others = map(float, levels.split())
        least = (first - x).abs()
        out = torch.where(least < 0, x, first)  # no distance is negative: the first level, in x's dtype
        for level in others:
            distance = (level - x).abs()
            is_nearer = distance < least
            out, least = torch.where(is_nearer, level, out), torch.where(is_nearer, distance, least)
        return out


class StateQuant:
    r"""A quantizer: it replaces each value by the nearest level. The gradient passes unchanged (straight-through).

    .. math:: q(x) = L_k, \quad k = \min \operatorname*{arg\,min}_i |L_i - x|

    The differences are rounded as in ``snntorch.functional.quant.state_quant``. Of equally near levels the first one is
    taken. NaN becomes the first level. Far from all levels, differences round to equal numbers, and the first of these
    levels is taken.

    .. code-block:: python

        lif = snn.Leaky(beta=0.9, state_quant=StateQuant(torch.linspace(-1.0, 1.2, 16)))

    Args:
        levels: the valid states, a floating tensor ``[L]``.

    Raises:
        TypeError: ``levels`` is no tensor.
        ValueError: ``levels`` is no floating tensor of one dimension with at least one element.

    Source: ``snntorch.functional.quant.state_quant`` 1.0.
    """

    def __init__(self, levels: torch.Tensor) -> None:
        if not isinstance(levels, torch.Tensor):
            raise TypeError(f"levels must be a torch.Tensor, got {type(levels).__name__}")
        if levels.dim() != 1 or levels.numel() == 0 or not levels.is_floating_point():
            raise ValueError(f"levels must be a floating tensor [L], got {levels.dtype} of shape {tuple(levels.shape)}")
        self.levels = levels.detach()
        self._searches: Dict[Tuple[torch.dtype, torch.device], _LevelSearch] = {}
        few = levels.numel() <= _MAX_COMPARED and levels.dtype == torch.float32 and bool(levels.isfinite().all())
        self._text = " ".join(map(repr, levels.tolist())) if few else ""  # TorchDynamo guards on this string
        self._last: Tuple[Callable[[], Optional[torch.Tensor]], int] = (lambda: None, 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the nearest level of each value of ``x``, any shape, in the dtype that the installed snnTorch returns.

        That is the dtype of the levels in snnTorch 1.0, and ``x``'s in later versions.
        """
        if is_exporting():
            dtype = x.dtype if installed.STATE_QUANT_KEEPS_DTYPE else self.levels.dtype
            return _StraightThroughTable.apply(x, self.levels.to(x.device, dtype))  # type: ignore[no-any-return]
        if self._text and torch.compiler.is_compiling() and x.dtype == torch.float32:
            return _StraightThroughComparisons.apply(x, self._text)  # type: ignore[no-any-return]
        last, version = self._last
        if last() is x and x._version == version:
            return x  # quantized already: snnTorch quantizes a membrane a second time before it fires
        key = (x.dtype, x.device)
        if key not in self._searches:
            self._searches[key] = _search(self.levels.cpu(), x.dtype, x.device)
        out: torch.Tensor = _StraightThrough.apply(x, self._searches[key])
        if not out.is_inference():  # those have no version counter
            self._last = (weakref.ref(out), out._version)
        return out

    def __getstate__(self) -> Dict[str, Any]:
        return {"levels": self.levels}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__init__(state["levels"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"StateQuant({self.levels.numel()} levels, {float(self.levels[0]):g} to {float(self.levels[-1]):g})"


def as_state_quant(state_quant: Any) -> Any:
    """Return a :class:`StateQuant` for a function that snnTorch's ``state_quant`` returned; anything else unchanged."""
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
    r"""Return a quantizer for a neuron's ``state_quant``, with snnTorch's arguments, levels, numbers and gradient.

    The levels lie in :math:`[-\theta (1 + a), \theta (1 + b)]`, with the ``threshold`` :math:`\theta`, ``lower_limit``
    :math:`a` and ``upper_limit`` :math:`b`. :class:`StateQuant` defines the rounding.

    .. code-block:: python

        lif = snn.Leaky(beta=0.9, state_quant=snn.functional.quant.state_quant(num_bits=4))

    Args:
        num_bits: bits of a state: there are ``2 ** num_bits`` levels.
        uniform: if True, the levels have equal distances. If False, they are exponentially denser near a centre.
        thr_centered: centre of non-uniform levels: the threshold if True, 0 if False.
        threshold: :math:`\theta`, the neuron's threshold.
        lower_limit: :math:`a`, the part of the threshold by which the range extends below :math:`-\theta`.
        upper_limit: :math:`b`, the part of the threshold by which the range extends above :math:`\theta`.
        multiplier: base of the exponential of non-uniform levels; None: snnTorch's choice for ``num_bits``.

    Returns:
        A :class:`StateQuant`.

    Source: ``snntorch.functional.quant.state_quant`` 1.0.
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
