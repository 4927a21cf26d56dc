"""Surrogate gradients with snnTorch's names and parameters, as picklable objects that select a fused kernel.

The forward pass of every surrogate is the Heaviside step ``S = H(u)``, ``u = mem - threshold``, ``H(0) = 0``. The
backward pass replaces ``dS/du`` by a smooth function. The equations are those of ``snntorch.surrogate``; the kernels
are generated from ``snnipu.equations``.

``snnipu.surrogate.atan()`` and ``snntorch.surrogate.atan()`` are interchangeable wherever a ``spike_grad`` is expected.
"""

import inspect
import math
from functools import partial
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import snntorch.surrogate
import torch

from snnipu import _route, equations
from snnipu._names import installed

SpikeGrad = Callable[[torch.Tensor], torch.Tensor]


# Each equation with the count of numbers that it takes after u and the gradient.
_EQUATIONS = [(equation, len(inspect.signature(equation).parameters) - 2) for equation in equations.SURROGATES]
_NUMBERS = {equation: number for number, equation in enumerate(equations.SURROGATES)}


class Kernel(NamedTuple):
    """A surrogate of the kernels: its index in ``snnipu.equations.SURROGATES``, and its two numbers."""

    id: int
    a: float
    b: float

    @classmethod
    def of(cls, equation: Callable[..., Any], a: float, b: float = 0.0) -> "Kernel":
        """Return the kernel of this equation with these numbers."""
        return cls(_NUMBERS[equation], a, b)

    def plain(self) -> Tuple[int, float, float]:
        """Return the three fields as a plain tuple."""
        return self.id, self.a, self.b

    @property
    def is_zero(self) -> bool:
        """Return True if the gradient is 0 everywhere."""
        return self.id == _NUMBERS[equations.fast_sigmoid] and self.b == math.inf


def surrogate_gradient(kernel: Kernel, u: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Return ``grad * dS/du`` in plain PyTorch.

    Raises:
        ValueError: no surrogate has the number ``kernel.id``.
    """
    if kernel.id not in range(len(_EQUATIONS)):
        raise ValueError(f"kernel must be one of the {len(_EQUATIONS)} native surrogates, got {kernel}")
    equation, numbers = _EQUATIONS[kernel.id]
    gradient: torch.Tensor = equation(u, grad, *kernel[1 : 1 + numbers])
    return gradient


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        ctx.save_for_backward(u)
        ctx.kernel = kernel
        return (u > 0).to(installed.spike_dtype(u.dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, None]:  # type: ignore[override]
        (u,) = ctx.saved_tensors
        return surrogate_gradient(ctx.kernel, u, grad), None


def spike(u: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """Return the spikes ``H(u)`` in snnTorch's dtype, with the gradient of a surrogate of the kernels."""
    return spike_of(u, *kernel)


def spike_of(u: torch.Tensor, number: int, a: float, b: float) -> torch.Tensor:
    """Return :func:`spike` for the fields of a kernel; one node in the graphs of ``snnipu.compiler``."""
    return _Spike.apply(u, Kernel(number, a, b))


class Surrogate:
    """A spike function ``S = H(u)`` with a surrogate gradient; it is called with ``u`` like snnTorch's functions.

    Args:
        name: the name of the factory in this module.
        parameters: the factory's parameters: numbers, except the function of ``custom_surrogate``.

    Raises:
        TypeError: a parameter is no number.

    Attributes:
        kernel: the surrogate of the kernels, or None if the gradient is evaluated in PyTorch. This is so for random and
            user-defined surrogates, and if the installed snnTorch has another formula. The forward pass and the
            recurrence of the backward pass are fused even then.
    """

    def __init__(self, name: str, **parameters: Any) -> None:
        self.name = name
        for key, value in parameters.items():
            parameters[key] = value if name == "custom_surrogate" else _number(key, value)
        self.parameters = parameters
        self._op = f"surrogate.{name}"
        build = None if name in _OF_ANOTHER_FORMULA else _KERNELS.get(name)
        self.kernel: Optional[Kernel] = build(**parameters) if build else None

    def __call__(self, u: torch.Tensor) -> torch.Tensor:
        """Return the spikes of ``u = mem - threshold``, of the same shape, differentiable by the surrogate.

        The dtype is that of the installed snnTorch: float32 in version 1.0, the dtype of ``u`` later.
        """
        if _route.uses_operator(self._op, "SurrogateSpike"):
            return _route.call("surrogate_spike", u, self.kernel)
        if self.kernel is not None:
            if self.kernel.is_zero:
                # As in snnTorch, these spikes require no gradient.
                return (u > 0).to(installed.spike_dtype(u.dtype))
            return spike(u, self.kernel)
        spikes: torch.Tensor = getattr(snntorch.surrogate, self.name)(*self.parameters.values())(u)
        return spikes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Surrogate):
            return NotImplemented
        return (self.name, self.parameters) == (other.name, other.parameters)

    def __hash__(self) -> int:
        # TorchDynamo 2.9 hashes objects before it has set their attributes.
        return hash(getattr(self, "name", None))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.parameters.items())})"


_KERNELS: Dict[str, Callable[..., Kernel]] = {
    "straight_through_estimator": lambda: Kernel.of(equations.leaky_step, 1.0),
    "heaviside": lambda: Kernel.of(equations.leaky_step, 0.0),
    "LSO": lambda slope: Kernel.of(equations.leaky_step, slope),
    "triangular": lambda threshold: Kernel.of(equations.triangular, threshold),
    "fast_sigmoid": lambda slope: Kernel.of(equations.fast_sigmoid, slope, -math.inf),
    "SFS": lambda slope, B: Kernel.of(equations.fast_sigmoid, slope, B),
    # The cutoff is infinite, so the gradient is 0 everywhere.
    "no_gradient": lambda: Kernel.of(equations.fast_sigmoid, 1.0, math.inf),
    "atan": lambda alpha: Kernel.of(equations.atan, alpha),
    "sigmoid": lambda slope: Kernel.of(equations.sigmoid, slope),
    "spike_rate_escape": lambda beta, slope: Kernel.of(equations.spike_rate_escape, beta, slope),
}

# The parameters used to compare each formula with the installed snnTorch.
_TRIED: Dict[str, Tuple[float, ...]] = {
    "straight_through_estimator": (),
    "heaviside": (),
    "LSO": (0.25,),
    "triangular": (0.75,),
    "fast_sigmoid": (10.0,),
    "SFS": (5.0, 0.1),
    "atan": (3.0,),
    "sigmoid": (2.0,),
    "spike_rate_escape": (1.5, 2.0),
}


_OF_ANOTHER_FORMULA = frozenset(
    name
    for name, arguments in _TRIED.items()
    if not installed.has_gradient(name, arguments, partial(surrogate_gradient, _KERNELS[name](*arguments)))
)


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise TypeError(f"{name} must be a number, got a tensor that requires a gradient")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None


def straight_through_estimator() -> Surrogate:
    """The surrogate ``dS/du = 1``: the gradient passes unchanged."""
    return Surrogate("straight_through_estimator")


def triangular(threshold: float = 1) -> Surrogate:
    """The surrogate ``dS/du = threshold`` where ``u < 0``, else ``-threshold``.

    Args:
        threshold: the height of the gradient; a number.

    Raises:
        TypeError: the argument is no number.
    """
    return Surrogate("triangular", threshold=threshold)


def fast_sigmoid(slope: float = 25) -> Surrogate:
    """The surrogate ``dS/du = 1 / (slope |u| + 1)^2`` (Zenke and Ganguli, SuperSpike, 2018).

    Args:
        slope: the steepness around ``u = 0``; a number.

    Raises:
        TypeError: the argument is no number.
    """
    return Surrogate("fast_sigmoid", slope=slope)


def atan(alpha: float = 2.0) -> Surrogate:
    """The surrogate ``dS/du = alpha / 2 / (1 + (pi/2 alpha u)^2)`` (Fang et al., ICCV 2021); snnTorch's default.

    Args:
        alpha: the steepness around ``u = 0``; a number.

    Raises:
        TypeError: the argument is no number.
    """
    return Surrogate("atan", alpha=alpha)


def heaviside() -> Surrogate:
    """The surrogate ``dS/du = H(u)``: the gradient passes where the neuron fires."""
    return Surrogate("heaviside")


def sigmoid(slope: float = 25) -> Surrogate:
    """The surrogate ``dS/du = slope e / (e + 1)^2`` with ``e = exp(-slope |u|)``, finite for every ``u``.

    Args:
        slope: the steepness around ``u = 0``; a number.

    Raises:
        TypeError: the argument is no number.
    """
    return Surrogate("sigmoid", slope=slope)


def spike_rate_escape(beta: float = 1, slope: float = 25) -> Surrogate:
    """The surrogate ``dS/du = slope exp(-beta |u - 1|)`` (Gerstner and Kistler, Spiking Neuron Models, 2002).

    Args:
        beta: the rate of the exponential; a number.
        slope: the height of the gradient; a number.

    Raises:
        TypeError: an argument is no number.
    """
    return Surrogate("spike_rate_escape", beta=beta, slope=slope)


def SSO(mean: float = 0, variance: float = 0.2) -> Surrogate:
    """The stochastic surrogate ``dS/du = 1`` where ``u > 0``, else ``(U[-0.5, 0.5) + mean) variance``.

    The backward pass draws the uniform numbers U.

    Args:
        mean: an offset of the uniform numbers; a number.
        variance: a factor of the gradient where ``u <= 0``; a number.

    Raises:
        TypeError: an argument is no number.
    """
    return Surrogate("SSO", mean=mean, variance=variance)


def LSO(slope: float = 0.1) -> Surrogate:
    """The leaky surrogate ``dS/du = 1`` where ``u > 0``, else ``slope``.

    Args:
        slope: the gradient where ``u <= 0``; a number.

    Raises:
        TypeError: the argument is no number.
    """
    return Surrogate("LSO", slope=slope)


def SFS(slope: float = 25, B: float = 1) -> Surrogate:
    """The sparse surrogate ``dS/du = 1 / (slope |u| + 1)^2`` where ``u > B``, else 0 (Perez-Nieves and Goodman, 2021).

    Args:
        slope: the steepness around ``u = 0``; a number.
        B: the cutoff of ``u``; a number.

    Raises:
        TypeError: an argument is no number.
    """
    return Surrogate("SFS", slope=slope, B=B)


def custom_surrogate(
    custom_surrogate_function: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> Surrogate:
    """A surrogate whose gradient is a user's function, evaluated in PyTorch.

    Args:
        custom_surrogate_function: called as ``custom_surrogate_function(u, grad, spikes)`` once per time step; it
            returns the gradient with respect to ``u``.

    Raises:
        TypeError: the argument is not callable.
    """
    if not callable(custom_surrogate_function):
        raise TypeError(f"custom_surrogate_function must be callable, got {custom_surrogate_function!r}")
    return Surrogate("custom_surrogate", custom_surrogate_function=custom_surrogate_function)


_FACTORIES: Dict[str, Callable[..., Surrogate]] = {
    factory.__name__: factory
    for factory in (
        straight_through_estimator,
        triangular,
        fast_sigmoid,
        atan,
        heaviside,
        sigmoid,
        spike_rate_escape,
        SSO,
        LSO,
        SFS,
        custom_surrogate,
    )
}


def as_surrogate(spike_grad: Union[Surrogate, SpikeGrad, None]) -> Optional[Surrogate]:
    """Convert ``spike_grad`` to a :class:`Surrogate`: a Surrogate, or the result of one of snnTorch's factories.

    ``None`` means snnTorch's default, :func:`atan`. The result is None for any other callable: its forward pass may
    differ from the Heaviside step.
    """
    if spike_grad is None:
        return atan()
    if isinstance(spike_grad, Surrogate):
        return spike_grad
    if spike_grad is snntorch.SpikingNeuron._surrogate_bypass:
        return Surrogate("no_gradient")
    if getattr(spike_grad, "__module__", None) != snntorch.surrogate.__name__ or not inspect.isfunction(spike_grad):
        return None
    factory = _FACTORIES.get(spike_grad.__qualname__.split(".")[0])
    if factory is None:
        return None
    values = inspect.getclosurevars(spike_grad).nonlocals
    if factory is custom_surrogate:
        return custom_surrogate(values["func"])
    try:
        return factory(**values)
    except (TypeError, RuntimeError):
        return None  # a parameter is no number, for example a learnable slope


def __getattr__(name: str) -> Any:
    return getattr(snntorch.surrogate, name)
