"""The equations of a time step of every neuron, in snnTorch's order of operations.

Each function takes the input current ``x``, the states before the step and, by keyword, the parameters. It returns the
output spikes and the states after the step, in the order of snnTorch's ``forward``. In a loop under autograd the
function is the reference of the neuron. ``snnipu._generator`` derives the kernels of every backend from it.

``spike(u)`` is the step function ``H(u)``, ``H(0) = 0``, with the derivative of a surrogate. ``.detach()`` stops
gradients. A keyword with a default is an option, chosen when the neuron is made; it is no tensor. A state called
``spk`` is the output of the step before. In 16 bit, states and parameters are computed in float32. ``spike`` then
rounds the membrane, the first term of ``u``, to the 16 bits in which it is stored.

The equations are those of snnTorch 1.0 (Eshraghian et al., "Training spiking neural networks using lessons from deep
learning", Proc. IEEE 2023). Names: ``mem`` is the membrane, ``syn`` the synaptic current, and ``reset`` is 1 if the
membrane was above the threshold before the step.

A surrogate gradient is a function of ``u`` (the membrane minus the threshold), of ``grad`` (the gradient of the spike)
and of up to two numbers. It returns ``grad`` times the surrogate of ``dS/du``. Kernels identify a surrogate by its
index in ``SURROGATES``.
"""

import math

# The values an option may take.
OPTIONS = {"reset_mechanism": ("subtract", "zero", "none"), "reset_delay": (True, False)}


def reset_by(mem, reset, threshold, reset_mechanism):
    """Return the membrane after ``reset`` resets: 1, 0 or, to undo one, -1."""
    if reset_mechanism == "subtract":
        return mem - reset * threshold
    if reset_mechanism == "zero":
        return mem - reset * mem
    return mem


def leaky(x, mem, *, beta, threshold, graded_spikes_factor, spike, reset_mechanism="subtract", reset_delay=True):
    reset = spike(mem - threshold).detach()
    if reset_mechanism == "zero":
        mem = beta.clamp(0, 1) * ((1 - reset) * mem) + x
    else:
        mem = reset_by(beta.clamp(0, 1) * mem + x, reset, threshold, reset_mechanism)
    fired = spike(mem - threshold)
    if not reset_delay:
        mem = reset_by(mem, fired - reset, threshold, reset_mechanism)
    return fired * graded_spikes_factor, mem


def lapicque(x, mem, *, R, C, time_step, threshold, graded_spikes_factor, spike, reset_mechanism="subtract"):
    reset = spike(mem - threshold).detach()
    mem = x * R * (1 / (R * C)) * time_step + (1 - time_step / (R * C)) * mem
    mem = reset_by(mem, reset, threshold, reset_mechanism)
    return spike(mem - threshold) * graded_spikes_factor, mem


def synaptic(
    x, syn, mem, *, alpha, beta, threshold, graded_spikes_factor, spike, reset_mechanism="subtract", reset_delay=True
):
    reset = spike(mem - threshold).detach()
    syn = alpha.clamp(0, 1) * syn + x
    mem = reset_by(beta.clamp(0, 1) * mem + syn, reset, threshold, reset_mechanism)
    fired = spike(mem - threshold)
    if not reset_delay:
        mem = reset_by(mem, fired - reset, threshold, reset_mechanism)
    return fired * graded_spikes_factor, syn, mem


def alpha(x, syn_exc, syn_inh, mem, *, alpha, beta, threshold, graded_spikes_factor, spike, reset_mechanism="zero"):
    reset = spike(mem - threshold).detach()
    rise, fall = alpha.clamp(0, 1), beta.clamp(0, 1)
    before = syn_inh
    syn_exc = rise * syn_exc + x
    syn_inh = fall * syn_inh - x
    mem = (rise.log() / (fall.log() - rise.log()) + 1) * (syn_exc + syn_inh)
    if reset_mechanism == "subtract":
        syn_exc = syn_exc - threshold * reset
        syn_inh = syn_inh - syn_inh * reset
        mem = mem - -before * reset
    elif reset_mechanism == "zero":
        syn_exc = syn_exc - syn_exc * reset
        syn_inh = syn_inh - syn_inh * reset
        mem = mem - mem * reset
    return spike(mem - threshold) * graded_spikes_factor, syn_exc, syn_inh, mem


def rleaky(
    x, spk, mem, *, beta, V, threshold, graded_spikes_factor, spike, reset_mechanism="subtract", reset_delay=True
):
    reset = spike(mem - threshold).detach()
    mem = reset_by(beta.clamp(0, 1) * mem + x + spk * V, reset, threshold, reset_mechanism)
    fired = spike(mem - threshold)
    if not reset_delay:
        mem = reset_by(mem, fired - reset, threshold, reset_mechanism)
    return fired * graded_spikes_factor, mem


def rsynaptic(x, spk, syn, mem, *, alpha, beta, V, threshold, graded_spikes_factor, spike, reset_mechanism="subtract"):
    # snnTorch's RSynaptic accepts a reset_delay that has no effect on the states.
    reset = spike(mem - threshold).detach()
    syn = alpha.clamp(0, 1) * syn + x + spk * V
    mem = reset_by(beta.clamp(0, 1) * mem + syn, reset, threshold, reset_mechanism)
    return spike(mem - threshold) * graded_spikes_factor, syn, mem


def delta_leaky(x, mem, mem_prev, *, beta, delta_threshold, spike):
    mem, mem_prev = beta * mem + x, mem
    return spike((mem - mem_prev).abs() - delta_threshold), mem, mem_prev


NEURONS = (leaky, lapicque, synaptic, alpha, rleaky, rsynaptic, delta_leaky)


def leaky_step(u, grad, slope):
    return grad.where(u > 0, slope * grad)


def triangular(u, grad, threshold):
    scaled = grad * threshold
    return (-scaled).where(u >= 0, scaled)


def fast_sigmoid(u, grad, slope, cutoff):
    base = slope * u.abs() + 1
    return (grad / (base * base)).masked_fill(u <= cutoff, 0.0)


def atan(u, grad, alpha):
    scaled = math.pi / 2 * alpha * u
    return alpha / 2 / (1 + scaled * scaled) * grad


def sigmoid(u, grad, slope):
    # The absolute value makes the exponent negative, so that exp never overflows.
    e = (-(slope * u).abs()).exp()
    base = e + 1
    return grad * slope * e / (base * base)


def spike_rate_escape(u, grad, beta, slope):
    return grad * slope * (-beta * (u - 1).abs()).exp()


SURROGATES = (leaky_step, triangular, fast_sigmoid, atan, sigmoid, spike_rate_escape)
