"""Delays by their definition."""

import torch

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def shares(delay, max_delay, kernel, sigma):
    """What arrives at each lag of 0 to ``max_delay``: ``[lags, *delay.shape]``, by the definition, differentiable."""
    delay = delay.clamp(0, max_delay)
    lags = torch.arange(max_delay + 1, dtype=delay.dtype).reshape(-1, *[1] * delay.dim())
    if kernel == "gaussian":
        made = torch.exp(-((lags - delay) ** 2) / (2 * sigma**2))
    else:  # 1 - frac at floor(d), frac behind it
        low = delay.detach().floor()
        made = (lags == low) * (1 - (delay - low)) + (lags == low + 1) * (delay - low)
    return made / made.sum(0)
