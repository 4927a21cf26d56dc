"""BrainTrace's online learning, compiled by JAX, of the same network: the peer's own extra, ``snnipu[braintrace]``."""

from typing import Any, Callable, Iterable, List, Sequence

import numpy as np
import torch

from benchmarks import peers

# Gradients and losses of the steps of a stream in chunks.
Stream = Callable[[Iterable[torch.Tensor]], "tuple[List[torch.Tensor], torch.Tensor]"]


def _modules() -> "tuple[Any, Any, Any, Any]":
    names = ("jax", "jax.numpy", "brainstate", "braintrace")
    jax, jnp, brainstate, braintrace = (peers.imported(name, name.partition(".")[0], "braintrace") for name in names)
    return jax, jnp, brainstate, braintrace


def stream(rule: str, weights: Sequence[torch.Tensor], beta: float, upstream: torch.Tensor, **options: Any) -> Stream:
    """A network of linear layers and leaky neurons, as ``snntorch.Leaky``, that learns by BrainTrace's ``rule``.

    The loss of a step is its output spikes times ``upstream`` ``[B, outputs]``. States begin anew with each stream.
    """
    jax, jnp, brainstate, braintrace = _modules()

    @jax.custom_jvp
    def spike(u: Any) -> Any:
        return (u > 0).astype(u.dtype)

    @spike.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (u,), (tangent,) = primals, tangents
        return spike(u), tangent / (1 + jnp.square(jnp.pi * u))  # snnTorch's atan

    class Leaky(brainstate.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, neurons: int) -> None:
            super().__init__()
            self.neurons = neurons

        def init_state(self, batch_size: int, **_: Any) -> None:
            self.mem = brainstate.HiddenState(jnp.zeros((batch_size, self.neurons)))

        def update(self, x: Any) -> Any:
            before = self.mem.value
            reset = jax.lax.stop_gradient((before > 1).astype(before.dtype))
            self.mem.value = beta * before + x - reset
            return spike(self.mem.value - 1)

    class Network(brainstate.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.parts = []
            for weight in weights:
                linear = braintrace.nn.Linear(
                    weight.shape[1], weight.shape[0], w_init=jnp.asarray(weight.t().numpy()), b_init=None
                )
                self.parts += [linear, Leaky(weight.shape[0])]

        def update(self, x: Any) -> Any:
            for part in self.parts:
                x = part(x)
            return x

    batch = len(upstream)
    example = jnp.zeros((batch, weights[0].shape[1]))
    learner = braintrace.compile(Network(), getattr(braintrace, rule), example, batch_size=batch, **options)
    factor = jnp.asarray(upstream.numpy())
    states = list(learner.states().values())
    first = [state.value for state in states]

    def loss(x: Any) -> Any:
        return (learner(x) * factor).sum()

    @brainstate.transform.jit  # type: ignore[untyped-decorator,unused-ignore]
    def learn(chunk: Any) -> Any:
        return learner.etrace_grad(chunk, step_fn=loss, reduction="sum", return_value=True)

    def run(chunks: Iterable[torch.Tensor]) -> "tuple[List[torch.Tensor], torch.Tensor]":
        for state, value in zip(states, first):
            state.value = value
        total, losses = None, []
        for chunk in chunks:
            grads, made = learn(jnp.asarray(chunk.numpy()))
            total = grads if total is None else jax.tree.map(jnp.add, total, grads)
            losses.append(made)
        found = [torch.from_numpy(np.array(grad)).t() for grad in jax.tree.leaves(total)]
        return found, torch.from_numpy(np.concatenate([np.array(made) for made in losses]))

    return run
