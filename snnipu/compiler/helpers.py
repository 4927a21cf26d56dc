"""What compiled graphs call besides PyTorch's own functions: time as a dimension in front of the others."""

from typing import Any, Sequence

import torch


def fold_time(x: torch.Tensor) -> torch.Tensor:
    """``[T, B, ...]`` as one batch, ``[T * B, ...]``."""
    return x.flatten(0, 1)


def split_time(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``[T * B, ...]`` as ``[T, B, ...]``, T and B being those of ``like``."""
    return x.unflatten(0, like.shape[:2])


def widen(x: torch.Tensor, dims: int) -> torch.Tensor:
    """``[T, ...]`` with so many dimensions of size 1 behind time: what broadcasting puts in front of a step."""
    index = (slice(None), *(None,) * dims)
    return x[index]


def held(x: torch.Tensor, num_steps: int) -> torch.Tensor:
    """One step's value at all steps, without a copy."""
    return x.unsqueeze(0).expand(num_steps, *x.shape)


def attention_over_time(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **named: Any) -> Any:
    """``multi_head_attention_forward`` of each step of ``[T, L, B, E]``, as that of a batch of ``T * B``."""
    steps = (query.shape[0], query.shape[2])
    # One and the same tensor stays one: a single product then makes query, key and value of it.
    folded = {id(one): one.transpose(0, 1).flatten(1, 2) for one in (query, key, value)}
    given: Any = (*(folded[id(one)] for one in (query, key, value)), *others)
    out, weights = torch.nn.functional.multi_head_attention_forward(*given, **named)
    return out.unflatten(1, steps).transpose(0, 1), None if weights is None else weights.unflatten(0, steps)


def record(x: torch.Tensor) -> torch.Tensor:
    """A sequence as ``torch.stack`` of its steps gives it."""
    return x.contiguous()


def record_along(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A sequence as ``torch.stack`` of its steps along ``dim`` gives it."""
    return x.movedim(0, dim).contiguous()


def joined(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A sequence as ``torch.cat`` of its steps along ``dim`` gives it."""
    if dim < 0:
        dim += x.dim() - 1
    return x.movedim(0, dim).flatten(dim, dim + 1).contiguous()


def reshaped(x: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """Each step ``reshape``d."""
    shape: Sequence[Any] = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    return x.reshape(x.shape[0], *shape)


def own_copy(x: torch.Tensor) -> torch.Tensor:
    """The same in memory of its own, for whoever gets it may change it."""
    return x.clone()


def not_kept(made: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """``made``, in memory of its own where a backward pass may need ``sequence``, of which it may be a view."""
    return made.clone() if made.requires_grad and (made is sequence or made._is_view()) else made
