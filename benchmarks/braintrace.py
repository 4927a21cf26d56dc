"""The same network with BrainTrace's online learning, compiled by JAX; needs the extra ``snnipu[braintrace]``."""

import numpy as np
import torch

from benchmarks import peers


def stream(rule, weights, beta, upstream, **options):
    """Return a function that trains a network of linear layers and leaky neurons by BrainTrace's ``rule``.

    The neurons are those of ``snntorch.Leaky``. The loss of a step is its output spikes times ``upstream``
    ``[B, outputs]``. Each call begins with the initial states.
    """
    names = ("jax", "jax.numpy", "brainstate", "braintrace")
    jax, jnp, brainstate, braintrace = (peers.imported(name, name.partition(".")[0], "braintrace") for name in names)

    @jax.custom_jvp
    def spike(u):
        return (u > 0).astype(u.dtype)

    @spike.defjvp
    def _(primals, tangents):
        (u,), (tangent,) = primals, tangents
        return spike(u), tangent / (1 + jnp.square(jnp.pi * u))  # snnTorch's atan surrogate

    class Leaky(brainstate.nn.Module):
        def __init__(self, neurons):
            super().__init__()
            self.neurons = neurons

        def init_state(self, batch_size, **_):
            self.mem = brainstate.HiddenState(jnp.zeros((batch_size, self.neurons)))

        def update(self, x):
            before = self.mem.value
            reset = jax.lax.stop_gradient((before > 1).astype(before.dtype))
            self.mem.value = beta * before + x - reset
            return spike(self.mem.value - 1)

    class Network(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = []
            for weight in weights:
                linear = braintrace.nn.Linear(
                    weight.shape[1], weight.shape[0], w_init=jnp.asarray(weight.t().numpy()), b_init=None
                )
                self.parts += [linear, Leaky(weight.shape[0])]

        def update(self, x):
            for part in self.parts:
                x = part(x)
            return x

    batch = len(upstream)
    example = jnp.zeros((batch, weights[0].shape[1]))
    learner = braintrace.compile(Network(), getattr(braintrace, rule), example, batch_size=batch, **options)
    factor = jnp.asarray(upstream.numpy())
    states = list(learner.states().values())
    first = [state.value for state in states]

    def loss(x):
        return (learner(x) * factor).sum()

    @brainstate.transform.jit
    def learn(chunk):
        return learner.etrace_grad(chunk, step_fn=loss, reduction="sum", return_value=True)

    def run(chunks):
        for state, value in zip(states, first):
            state.value = value
        total, losses = None, []
        for chunk in chunks:
            grads, loss_of_step = learn(jnp.asarray(chunk.numpy()))
            total = grads if total is None else jax.tree.map(jnp.add, total, grads)
            losses.append(loss_of_step)
        gradients = [torch.from_numpy(np.array(grad)).t() for grad in jax.tree.leaves(total)]
        return gradients, torch.from_numpy(np.concatenate([np.array(loss_of_step) for loss_of_step in losses]))

    return run
