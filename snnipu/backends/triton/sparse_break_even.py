"""From which activity on a matrix product is faster than a gather on a GPU. Needs PyTorch alone, not Triton."""

import torch

# Share of the input neurons that spike in a step. PROVISIONAL: no GPU was at hand. They follow from an H200's 4.3 TB/s
# and its matrix products of 50 (float32), 400 (TF32) and 790 (16 bit) TFLOP/s, of which a gather's 4 bytes a weight and
# spike are to be earned back.
STRICT = 0.06
TF32 = 0.01
HALF = 0.005
DOUBLE = 0.03


def tf32_allowed() -> bool:
    """Whether float32 matrix products on CUDA may round their factors to TF32."""
    matmul = torch.backends.cuda.matmul
    # The newer of PyTorch's two settings, where it has both, follows the older one; not so the other way round.
    try:
        precision = matmul.fp32_precision
    except (AttributeError, AssertionError):  # the latter in PyTorch 2.0
        precision = None
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def break_even(dtype: torch.dtype) -> float:
    """Share of spiking inputs from which on the matrix product of ``dtype`` is faster, with the settings of now."""
    if torch.is_autocast_enabled():
        return HALF
    if dtype == torch.float64:
        return DOUBLE
    return TF32 if tf32_allowed() else STRICT
