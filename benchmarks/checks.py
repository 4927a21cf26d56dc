"""Correctness gates: what a contender computed against what it should have computed."""

import contextlib
import warnings
from dataclasses import dataclass, field
from typing import Dict, Iterable, Iterator, Optional, Sequence, Tuple

import torch

from snnipu import dense_only


@dataclass(frozen=True)
class Check:
    """Outcome of a gate.

    Attributes:
        against: what the results were compared with.
        detail: the errors and what was allowed, as a sentence.
        errors: the errors as numbers.
    """

    passed: bool
    against: str
    detail: str
    errors: Dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from its reference.

    Attributes:
        flips: largest fraction of spikes that may differ.
        gradient: largest gradient error relative to the largest gradient, over the neurons whose spikes all agree: one
            flipped spike changes the gradient of its whole train, rightly.
    """

    flips: float
    gradient: float


# Half precision and the fused multiply-adds of a GPU round the membrane differently from the reference, so that values
# at the threshold may fall on either side of it; on a CPU float32 and float64 leave no such freedom.
_HALF = {torch.float16: Tolerance(1e-2, 2e-2), torch.bfloat16: Tolerance(5e-2, 1e-1)}
_EXACT = Tolerance(0.0, 1e-5)
_FUSED_MULTIPLY_ADD = Tolerance(1e-4, 1e-5)


def tolerance_for(dtype: torch.dtype, device: torch.device, same_operations: bool = True) -> Tolerance:
    """Tolerance of a LIF layer; with ``same_operations`` both sides round in the same order."""
    if dtype in _HALF:
        return _HALF[dtype]
    return _EXACT if device.type == "cpu" and same_operations else _FUSED_MULTIPLY_ADD


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest absolute difference over the largest absolute reference; infinite where either is not finite."""
    if value.shape != reference.shape:
        raise ValueError(f"value: shape {tuple(value.shape)}, but the reference has {tuple(reference.shape)}")
    if reference.numel() == 0:
        return 0.0
    value, reference = value.detach().double(), reference.detach().double()
    error = float((value - reference).abs().max())
    scale = float(reference.abs().max())
    if not torch.isfinite(torch.tensor([error, scale])).all():
        return float("inf")
    return error / scale if scale > 0 else error


LayerPart = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def check_layer(
    spikes: torch.Tensor,
    gradient: torch.Tensor,
    reference_spikes: torch.Tensor,
    reference_gradient: torch.Tensor,
    tolerance: Tolerance,
    against: str,
) -> Check:
    """Gate of a layer over a sequence: spikes and gradient of its input, all ``[T, B, N]``."""
    return check_layer_parts([(spikes, gradient, reference_spikes, reference_gradient)], tolerance, against)


def check_layer_parts(parts: Iterable[LayerPart], tolerance: Tolerance, against: str) -> Check:
    """The same over parts of the neurons, of which one at a time must be there: spikes, gradient and their references.

    A part's gradient error is relative to that part's largest gradient: no less than to that of all.
    """
    flips = total = 0
    error = 0.0
    for spikes, gradient, reference_spikes, reference_gradient in parts:
        differs = spikes.detach().double() != reference_spikes.detach().double()
        flips += int(differs.sum())
        total += differs.numel()
        agrees = ~differs.any(dim=0)
        if bool(agrees.all()):
            part_error = relative_error(gradient, reference_gradient)  # without the copies that a selection makes
        elif bool(agrees.any()):
            part_error = relative_error(gradient[:, agrees], reference_gradient[:, agrees])
        else:
            part_error = float("inf")
        error = max(error, part_error)
    fraction = flips / max(1, total)
    spikes_pass, gradient_passes = fraction <= tolerance.flips, error <= tolerance.gradient
    said = "all spikes equal" if flips == 0 else f"{flips:,} of {total:,} spikes differ"
    return Check(
        passed=spikes_pass and gradient_passes,
        against=against,
        detail=f"{said} (allowed: {tolerance.flips:.2%}); "
        f"gradient error {error:.1e} (allowed: {tolerance.gradient:.0e})",
        errors={"spikes_differing": float(flips), "spikes_differing_fraction": fraction, "gradient_error": error},
    )


def check_network(
    spikes: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    reference_spikes: Sequence[torch.Tensor],
    reference_gradients: Sequence[torch.Tensor],
    tolerance: float,
    against: str,
) -> Check:
    """Gate of a network of spiking layers: the spikes of every layer, which must be equal, and its weight gradients.

    Of inference there are none.
    """
    differing = sum(int((s.detach().double() != r.detach().double()).sum()) for s, r in zip(spikes, reference_spikes))
    total = sum(r.numel() for r in reference_spikes)
    error = max((relative_error(g, r) for g, r in zip(gradients, reference_gradients)), default=0.0)
    said = "all spikes equal" if differing == 0 else f"{differing:,} of {total:,} spikes differ (allowed: none)"
    return Check(
        passed=differing == 0
        and error <= tolerance
        and len(spikes) == len(reference_spikes)
        and len(gradients) == len(reference_gradients),
        against=against,
        detail=said + (f"; gradient error {error:.1e} (allowed: {tolerance:.0e})" if reference_gradients else ""),
        errors={"spikes_differing": float(differing), "gradient_error": error},
    )


def check_training(
    loss: torch.Tensor,
    gradients: Sequence[Optional[torch.Tensor]],
    reference_loss: torch.Tensor,
    reference_gradients: Sequence[Optional[torch.Tensor]],
    tolerance: float,
    against: str,
    of_network: bool = False,
) -> Check:
    """Gate of a training step: the loss and the gradient of every parameter, in the same order on both sides.

    A parameter without a gradient has None, on both sides. Errors are relative to the largest gradient of the
    parameter, or ``of_network``, of all parameters: a bias before a batch norm has no gradient but rounding.
    """
    loss_error = relative_error(loss.reshape(()), reference_loss.reshape(()))
    pairs = [(g, r) for g, r in zip(gradients, reference_gradients) if g is not None and r is not None]
    if of_network and pairs:
        pairs = [tuple(torch.cat([tensor.flatten() for tensor in side]) for side in zip(*pairs))]  # type: ignore[list-item]
    gradient_error = max((relative_error(g, r) for g, r in pairs), default=0.0)
    one_sided = sum((g is None) != (r is None) for g, r in zip(gradients, reference_gradients))
    said = f"; {one_sided} parameters have a gradient on one side alone" if one_sided else ""
    return Check(
        passed=loss_error <= tolerance and gradient_error <= tolerance and not one_sided,
        against=against,
        detail=f"loss error {loss_error:.1e}, gradient error {gradient_error:.1e} (allowed: {tolerance:.0e}){said}",
        errors={"loss_error": loss_error, "gradient_error": gradient_error},
    )


def summation_rounding(terms: int) -> float:
    """Relative error of a float32 sum of so many terms in one accumulator, about 2**-24 times the root of their number.

    (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019)
    """
    return float(2.0**-24 * terms**0.5)


def both(first: Check, second: Check, how: str) -> Check:
    """Two gates of the same results as one; ``how``: what is different in the second."""
    return Check(
        passed=first.passed and second.passed,
        against=first.against,
        detail=f"{first.detail}; {how}: {second.detail}",
        errors={key: max(value, second.errors.get(key, value)) for key, value in first.errors.items()},
    )


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """PyTorch's own convolutions, which sum up a gradient in blocks of bounded size, on a CPU; of zeros, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch speaks of TF32 on Intel's GPUs
        with torch.backends.mkldnn.flags(enabled=False), dense_only():
            yield
