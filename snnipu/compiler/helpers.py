"""Functions that compiled graphs call besides PyTorch's. In sequences time is the first dimension."""

import operator
import warnings
from typing import Any, List, Sequence, Tuple

import torch

from snnipu.ops._arguments import is_autocast


def fold_time(x: torch.Tensor) -> torch.Tensor:
    """Return ``[T, B, ...]`` as one batch, ``[T * B, ...]``."""
    return x.flatten(0, 1)


def split_time(x: Any, like: torch.Tensor) -> Any:
    """Return ``[T * B, ...]`` as ``[T, B, ...]``, with T and B of ``like``; for a tuple, each of its tensors."""
    if isinstance(x, tuple):
        return tuple(split_time(one, like) for one in x)
    return x.unflatten(0, like.shape[:2])


def widen(x: torch.Tensor, dims: int) -> torch.Tensor:
    """Insert ``dims`` dimensions of size 1 after time, as broadcasting does in front of a step's dimensions."""
    index = (slice(None), *(None,) * dims)
    return x[index]


def held(x: torch.Tensor, num_steps: int) -> torch.Tensor:
    """Expand the value of a step to all steps, without a copy."""
    return x.unsqueeze(0).expand(num_steps, *x.shape)


def reshaped(x: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """Reshape each step."""
    shape: Sequence[Any] = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    return x.reshape(x.shape[0], *shape)


def clock(num_steps: int, first: int) -> List[int]:
    """Return the clock of each step: its number plus :data:`snnipu.compiler.marks.OFFSET`."""
    return list(range(first, first + num_steps))


def storage(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def share_memory(inputs: Sequence[Any], places: Sequence[int]) -> bool:
    """Return True if one of the tensors at ``places`` shares memory with another input."""
    storages = [storage(one) if isinstance(one, torch.Tensor) else 0 for one in inputs] if places else []
    return any(storages[place] and storages.count(storages[place]) > 1 for place in places)


def each_number(name: str, num_steps: int, arguments: Sequence[Any]) -> List[Any]:
    """Apply a function of :mod:`operator` at each step; a list in ``arguments`` has a number for each step."""
    function = getattr(operator, name)
    return [function(*(one[step] if type(one) is list else one for one in arguments)) for step in range(num_steps)]


def apart(sequence: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """Return a copy of the value of each step."""
    return tuple([one.clone() for one in sequence.unbind()])


def stacked(sequence: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return a copy of the values of all steps, with time as dimension ``dim``."""
    return torch.cat((sequence.movedim(0, dim),), dim)


def last(sequence: torch.Tensor) -> torch.Tensor:
    """Return a copy of the value of the last step."""
    return sequence[-1].clone()


def one_later(first: Any, sequence: torch.Tensor) -> torch.Tensor:
    """Delay a sequence by one step, with ``first`` as its first value."""
    if not isinstance(first, torch.Tensor):
        first = sequence.new_full(sequence.shape[1:], first or 0)
    return torch.cat((first.expand(sequence.shape[1:]).unsqueeze(0), sequence[:-1]))


def sums(first: Any, sequence: torch.Tensor) -> torch.Tensor:
    """Return, for each step, ``first`` plus the sum of the values up to this step."""
    partial = sequence.cumsum(0, dtype=sequence.dtype)
    return partial if first is None else partial + first


def total(first: Any, sequence: torch.Tensor) -> torch.Tensor:
    """Return ``first`` plus the sum of all values."""
    added = sequence.sum(0, dtype=sequence.dtype)
    return added if first is None else first + added


def norm_again(num_steps: int, input: torch.Tensor, **named: Any) -> torch.Tensor:
    """Run ``batch_norm`` once for a batch that is the same at all steps.

    The running averages equal those of one update per step, to rounding.
    """
    momentum = named.pop("momentum", 0.1)
    return torch.nn.functional.batch_norm(input, momentum=1 - (1 - momentum) ** num_steps, **named)


def as_tensor(numbers: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the numbers of all steps as a tensor."""
    return torch.tensor(numbers, dtype=dtype, device=device)


def _at(index: Any, step: int) -> Any:
    """Return an index at one step; a list in the index has a number for each step."""
    if isinstance(index, tuple):
        return tuple([_at(one, step) for one in index])
    if isinstance(index, slice):
        return slice(_at(index.start, step), _at(index.stop, step), _at(index.step, step))
    return index[step] if isinstance(index, list) else index


def _progression(numbers: Sequence[int]) -> int:
    """Return the constant difference of consecutive numbers, or 0 if it is not constant."""
    by = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    return by if all(b - a == by for a, b in zip(numbers, numbers[1:])) else 0


def steps_at(index: Tuple[Any, ...], dims: int) -> Any:
    """Return an index of all steps together and the dimension of time in its result, or None."""
    places = [place for place, one in enumerate(index) if isinstance(one, list)]
    if len(places) != 1 or any(isinstance(one, slice) and list in map(type, (one.start, one.stop)) for one in index):
        return None
    place, numbers = places[0], index[places[0]]
    by = _progression(numbers)
    if by < 1 or numbers[0] < 0:
        return None
    hidden = dims - sum(one is not None and one is not Ellipsis for one in index)
    dim = sum(hidden if one is Ellipsis else not isinstance(one, int) for one in index[:place])
    return (*index[:place], slice(numbers[0], numbers[-1] + 1, by), *index[place + 1 :]), dim


def take_steps(x: torch.Tensor, index: Tuple[Any, ...], num_steps: int) -> torch.Tensor:
    """Return ``x[index]`` of all steps, time first; a list in the index has a number for each step."""
    together = steps_at(index, x.dim())
    if together is None or x.dim() == 0:
        return torch.stack([x[_at(index, step)] for step in range(num_steps)])
    every, dim = together
    for size, one in zip(x.shape, index):  # raise the error of a step
        if isinstance(one, list) and one[-1] >= size:
            x[_at(index, num_steps - 1)]
    values = x[every]
    return values.movedim(dim, 0) if dim else values


def take_windows(x: torch.Tensor, dim: int, start: Any, length: Any, num_steps: int) -> torch.Tensor:
    """Return ``x.narrow(dim, start, length)`` of all steps, time first; a list has a number for each step."""
    by = _progression(start) if type(start) is list else 0
    if by < 1 or type(length) is list:
        return torch.stack([x.narrow(dim, _at(start, step), _at(length, step)) for step in range(num_steps)])
    windows = x.narrow(dim, start[0], by * (num_steps - 1) + length).unfold(dim, length, by)
    return windows.movedim(dim, 0).movedim(-1, dim + 1)


def set_steps(x: torch.Tensor, index: Tuple[Any, ...], value: Any, num_steps: int) -> None:
    """Set ``x[index] = value`` at all steps.

    Args:
        index: the index; a list in it has a number for each step.
        value: a tensor with the values of all steps, a list with a number for each step, or a number.
    """
    together = steps_at(index, x.dim())
    per_step = isinstance(value, (torch.Tensor, list))
    part = None if together is None else x[together[0]].movedim(together[1], 0)
    missing = 0 if part is None or not isinstance(value, torch.Tensor) else part.dim() - value.dim()
    if part is None or not isinstance(value, torch.Tensor) or len(part) < num_steps or missing < 0:
        for step in range(num_steps):
            x[_at(index, step)] = value[step] if per_step else value
        return
    part.copy_(widen(value, missing))


def each_step(
    run: Any, num_steps: int, states: Sequence[Any], inputs: Sequence[Any], sequences: Sequence[bool]
) -> Tuple[Tuple[Any, ...], Sequence[Any]]:
    """Run operations step by step, and return their results over time and the last states.

    Args:
        run: the graph of a step: from states and inputs to results and the next states.
        sequences: for each input, True if it is a sequence.
    """
    parts = [
        one.unbind() if isinstance(one, torch.Tensor) and varies else one for one, varies in zip(inputs, sequences)
    ]
    steps = []
    for step in range(num_steps):
        now = [part[step] if varies else part for part, varies in zip(parts, sequences)]
        results, states = run.forward(*states, *now)
        steps.append(results)
    return tuple([_joined_steps(same) for same in zip(*steps)]), states


def vectorized(run: Any, inputs: Sequence[Any], sequences: Sequence[bool]) -> Tuple[Any, ...]:
    """Run operations without states by ``torch.vmap``; the arguments are those of :func:`each_step`."""
    places = tuple([0 if varies else None for varies in sequences])
    return torch.vmap(lambda *now: run.forward(*now)[0], places)(*inputs)  # type: ignore[no-any-return]


def is_vectorized(run: Any, values: Sequence[Any], results: Sequence[Any], sequences: Sequence[bool]) -> bool:
    """Return True if ``torch.vmap`` can run operations; they are tried on zeros of two steps.

    Args:
        values: the traced inputs of a step.
        results: the traced results of a step.
    """

    def zeros(value: Any, steps: Tuple[int, ...]) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple([zeros(one, steps) for one in value])
        if isinstance(value, torch.Tensor):
            like = {"dtype": value.dtype, "device": value.device, "requires_grad": value.requires_grad}
            return torch.zeros((*steps, *sizes_of(value)), **like)  # type: ignore[call-overload]
        return getattr(getattr(value, "node", None), "hint", value)

    tensors = [(one, varies) for one, varies in zip(values, sequences) if isinstance(one, torch.Tensor)]
    if len({one.dtype for one, _ in tensors}) > 1 and any(varies and not one.dim() for one, varies in tensors):
        return False  # vmap would round a tensor without dimensions to the dtype of the result
    if any(is_autocast(one.device.type) for one, _ in tensors if one.device.type in ("cpu", "cuda")):
        return False  # vmap splits some operations before autocast chooses their dtype
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")  # vmap runs the operator step by step
            inputs = [zeros(one, (2,) * varies) for one, varies in zip(values, sequences)]
            found = vectorized(run, inputs, sequences)
    except Exception:
        return False
    return _forms(found, 1) == _forms(results, 0)


def _forms(value: Any, first: int) -> Any:
    """Return sizes from dimension ``first`` on, and dtypes, of tensors."""
    if isinstance(value, (tuple, list)):
        return [_forms(one, first) for one in value]
    return (sizes_of(value)[first:], value.dtype) if isinstance(value, torch.Tensor) else None


def sizes_of(value: torch.Tensor) -> Tuple[int, ...]:
    """Return the sizes of a tensor in the traced call."""
    return tuple([size if isinstance(size, int) else size.node.hint for size in value.shape])


def _joined_steps(values: Sequence[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.stack(list(values))
    if isinstance(values[0], (tuple, list)):
        return tuple([_joined_steps(same) for same in zip(*values)])
    return list(values)
