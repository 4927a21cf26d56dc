"""Delays by their definition."""

import torch

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def shares(delay, max_delay, kernel, sigma):
    """Return the share of a spike at each lag of 0 to ``max_delay``: ``[lags, *delay.shape]``, differentiable."""
    delay = delay.clamp(0, max_delay)
    lags = torch.arange(max_delay + 1, dtype=delay.dtype).reshape(-1, *[1] * delay.dim())
    if kernel == "gaussian":
        weights = torch.exp(-((lags - delay) ** 2) / (2 * sigma**2))
    else:  # 1 - frac at floor(d), frac one step later
        low = delay.detach().floor()
        weights = (lags == low) * (1 - (delay - low)) + (lags == low + 1) * (delay - low)
    return weights / weights.sum(0)


def weighted(x, weight, delay, bias, max_delay, kernel="linear", sigma=1.0):
    """Return the delayed product ``[T, B, out]`` of ``[T, B, in]``, lag by lag."""
    steps = x.shape[0]
    by_lag = weight * shares(delay.expand(weight.shape), max_delay, kernel, sigma)
    out = x.new_zeros(steps, x.shape[1], weight.shape[0])
    for t in range(steps):
        for lag in range(min(t, max_delay) + 1):
            out[t] = out[t] + x[t - lag] @ by_lag[lag].t()
    return out if bias is None else out + bias
