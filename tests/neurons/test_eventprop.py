"""EventProp: ``snnipu.SparseSynaptic(gradient="eventprop")`` against finite differences in continuous time."""

import copy
import math

import pytest
import torch
from oracle import relative_error
from support import continuous_spikes as continuous
from torch import nn

import snnipu as snn
from snnipu.functional import first_spike_times
from snnipu.ops import _library, eventprop

CONSTANTS = continuous.Constants()
GRID = 0.04  # the times of the input are multiples, which every step divides
EVENTPROP = {"gradient": "eventprop"}


def layer_of(inputs=20, neurons=30, dtype=torch.float64, **keywords):
    torch.manual_seed(1)
    layer = snn.SparseSynaptic(inputs, neurons, **{"alpha": 0.8, "beta": 0.9, "gradient": "eventprop", **keywords})
    with torch.no_grad():
        layer.weight.uniform_(-0.2, 0.5)
    return layer.to(dtype)


def spikes_in(steps=25, batch=3, inputs=20, rate=0.15):
    torch.manual_seed(2)
    return snn.SparseSpikes.from_dense((torch.rand(steps, batch, inputs) < rate).double())


# ---- against continuous time


def problem(sizes, seed, kind=None):
    """Return events of the input, the parameters of each layer by name, and a factor for each output.

    ``kind``: "delay" or "recurrent_weight", a parameter of every layer beside "weight"; None: no other parameter.
    """
    generator = torch.Generator().manual_seed(seed)
    times = torch.randint(1, round(0.8 / GRID), (2, sizes[0]), generator=generator)
    events = sorted((GRID * int(step), k) for row in times for k, step in enumerate(row))
    layers = []
    for inputs, neurons in zip(sizes, sizes[1:]):
        factor = (6 if not layers else 12) / inputs
        weight = (torch.rand(neurons, inputs, generator=generator) * 0.8 + 0.2) * factor
        layers.append({"weight": weight.double()})
    factors = (torch.rand(sizes[-1], generator=generator) + 0.5).double()
    for layer in layers if kind else ():
        neurons, inputs = layer["weight"].shape
        shape = (neurons, inputs if kind == "delay" else neurons)
        layer[kind] = (torch.rand(shape, generator=generator) * 0.4).double()
    return events, layers, factors


def loss_in_continuous_time(events, layers, factors, reads_membranes):
    for layer in layers[: len(layers) - reads_membranes]:
        events = continuous.layer(events, c=CONSTANTS, **layer)
    if reads_membranes:
        silent, last = CONSTANTS._replace(threshold=1e9), layers[-1]
        arriving = [continuous.arrivals(events, row) for row in last["delay"]] if "delay" in last else None
        read = [
            continuous.spikes_of(arriving[n] if arriving else events, row, silent)[1]
            for n, row in enumerate(last["weight"])
        ]
    else:
        read = continuous.first_times(events, len(layers[-1]["weight"]), CONSTANTS)
    return sum(factor * value**2 for factor, value in zip(factors.tolist(), read))


def constants_of_steps(dt):
    """Return the keywords of a layer with steps of ``dt``."""
    decays = {name: math.exp(-dt / tau) for name, tau in (("alpha", CONSTANTS.tau_s), ("beta", CONSTANTS.tau_m))}
    scale = (decays["alpha"] - decays["beta"]) * CONSTANTS.tau_s / (CONSTANTS.tau_s - CONSTANTS.tau_m)
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in decays.items()}
    return {**tensors, "threshold": CONSTANTS.threshold, "input_scale": scale, "reset_mechanism": "subtract"}


def input_of_steps(events, neurons, dt):
    return snn.SparseSpikes.from_events(
        [time + dt / 2 for time, _ in events],
        [neuron for _, neuron in events],
        num_steps=round(CONSTANTS.end / dt),
        num_neurons=neurons,
        step=dt,
        values="count",
    ).to(torch.float64)


def gradient_of_steps(events, parameters, factors, reads_membranes, dt, **options):
    """Return the gradient of the same loss by layers with steps of ``dt``, a list of dicts as ``parameters``."""
    layers = []
    for index, each in enumerate(parameters):
        keywords = constants_of_steps(dt)
        if reads_membranes and index == len(parameters) - 1:
            keywords["threshold"] = 1e9
        if "delay" in each:
            keywords.update(max_delay=math.ceil(0.4 / dt), delay=each["delay"] / dt)
        keywords["recurrent"] = "recurrent_weight" in each
        neurons, inputs = each["weight"].shape
        layer = snn.SparseSynaptic(inputs, neurons, **{**EVENTPROP, **keywords, **options}).double()
        layer.load_state_dict({name: value for name, value in each.items() if name != "delay"}, strict=False)
        layers.append(layer)
    x = input_of_steps(events, layers[0].in_features, dt)
    for layer in layers[: len(layers) - reads_membranes]:
        x = layer(x)
    read = layers[-1].membranes(x).sum(0)[0] if reads_membranes else first_spike_times(x)[0]
    (factors * (read * dt) ** 2).sum().backward()
    unit = {"delay": dt}  # of a parameter in steps
    return [
        {name: getattr(layer, name).grad / unit.get(name, 1) for name in each}
        for layer, each in zip(layers, parameters)
    ]


def errors(sizes, seed, reads_membranes, steps, kind=None, **options):
    """Return the relative error of the gradient for each length of a step: the largest of all kinds of parameters."""
    events, parameters, factors = problem(sizes, seed, kind)
    lists = [{name: value.tolist() for name, value in layer.items()} for layer in parameters]
    grads = continuous.finite_differences(
        lambda: loss_in_continuous_time(events, lists, factors, reads_membranes),
        [matrix for layer in lists for matrix in layer.values()],
    )
    expected = iter(torch.tensor(grad, dtype=torch.float64).flatten() for grad in grads)
    expected = [dict(zip(layer, expected)) for layer in lists]
    result = []
    for dt in steps:
        found = gradient_of_steps(events, parameters, factors, reads_membranes, dt, **options)
        of_kinds = []
        for name in parameters[0]:
            one, other = (torch.cat([layer[name].flatten() for layer in grads]) for grads in (found, expected))
            of_kinds.append(float((one - other).norm() / other.norm()))
        result.append(max(of_kinds))
    return result


@pytest.mark.parametrize("seed", [1, 26])
def test_one_layer_converges_with_the_square_of_the_step(seed):
    large, small, smallest = errors((10, 4), seed, 0, (0.02, 0.01, 0.0025))
    assert small < 5e-4
    assert large > 2.5 * small > 25 * smallest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "reads_membranes", "reset_mechanism", "most"),
    [(49, 0, "subtract", 0.02), (224, 1, "subtract", 0.01), (49, 0, "zero", 0.035), (224, 1, "zero", 0.06)],
)
def test_two_layers_converge_with_the_step(seed, reads_membranes, reset_mechanism, most):
    large, small, smallest = errors(
        (5, 8, 3), seed, reads_membranes, (0.02, 0.01, 0.0025), reset_mechanism=reset_mechanism
    )
    assert small < most
    assert large > 1.5 * small > 3 * smallest


@pytest.mark.slow
def test_eventax_has_the_same_gradient():
    """eventax differentiates through the events of a solver of differential equations, in JAX."""
    reason = "eventax is not installed: pip install eventax, with Python 3.11 or later"
    evnn = pytest.importorskip("eventax.evnn", reason=reason)
    import diffrax
    import equinox
    import jax
    import optimistix
    from eventax.neuron_models import LIF

    inputs, *sizes = 5, 8, 3
    events, parameters, factors = problem((inputs, *sizes), 49)
    hidden, output = slice(sizes[0]), slice(sizes[0], sum(sizes))
    places = ((slice(sum(sizes), None), hidden), (hidden, output))  # of the weights of each layer, transposed
    matrix = torch.zeros(inputs + sum(sizes), sum(sizes), dtype=torch.float64)
    for place, layer in zip(places, parameters):
        matrix[place] = layer["weight"].T
    with jax.enable_x64(True):
        net = evnn.FFEvNN(
            layers=sizes,
            in_size=inputs,
            neuron_model=LIF,
            max_solver_time=CONSTANTS.end,
            key=jax.random.PRNGKey(0),
            solver=diffrax.Dopri5(),
            root_finder=optimistix.Newton(1e-10, 1e-10),
            dtype=jax.numpy.float64,
            thresh=CONSTANTS.threshold,
            tsyn=CONSTANTS.tau_s,
            tmem=CONSTANTS.tau_m,
            init_weights=jax.numpy.asarray(matrix.numpy()),
            init_bias=0.0,
        )
        times = jax.numpy.asarray([[time for time, source in events if source == n] for n in range(inputs)])
        weight = jax.numpy.asarray(factors.numpy())
        loss = equinox.filter_value_and_grad(lambda net: (weight * net.ttfs(times) ** 2).sum())
        value, grad = equinox.filter_jit(loss)(net)
    layers = [{"weight": layer["weight"].tolist()} for layer in parameters]
    assert float(value) == pytest.approx(loss_in_continuous_time(events, layers, factors, 0), rel=1e-9)
    weights = torch.tensor(grad.neuron_model.weights.tolist(), dtype=torch.float64)
    expected = torch.cat([weights[place].T.flatten() for place in places])
    for dt, most in ((0.02, 0.04), (0.01, 0.02), (0.0025, 0.005)):
        grads = gradient_of_steps(events, parameters, factors, 0, dt)
        found = torch.cat([layer["weight"].flatten() for layer in grads])
        assert float((found - expected).norm() / expected.norm()) < most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sizes", "seed", "most"),
    [
        ("delay", (10, 4), 26, 0.01),
        ("delay", (5, 8, 3), 123, 0.025),
        ("recurrent_weight", (10, 4), 10, 0.015),
    ],
)
def test_delays_and_recurrent_weights_converge_with_the_step(kind, sizes, seed, most):
    """The errors are those of weights or of the other parameters, whichever is larger."""
    large, small, smallest = errors(sizes, seed, 0, (0.02, 0.01, 0.0025), kind=kind)
    assert small < most
    assert large > 1.5 * small > 3 * smallest


def matrix_of(weight, channels, size):
    """Return the matrix of a convolution on maps of ``size``, differentiable."""
    inputs = channels * size[0] * size[1]
    basis = torch.eye(inputs, dtype=weight.dtype).reshape(inputs, channels, *size)
    return nn.functional.conv2d(basis, weight).flatten(1).t()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["max", "average", "sum"])
def test_a_convolution_and_a_pool_converge_with_the_step(mode):
    """A pool of continuous time passes on every spike of its window."""
    events, _, factors = problem((16, 3), 4)
    torch.manual_seed(7)
    kernels = (torch.rand(2, 1, 3, 3).double() * 0.8 + 0.2) * 0.6
    share = 0.25 if mode == "average" else 1.0
    weight = (torch.rand(3, 2).double() * 1.5 + 0.5) / share
    lists = [kernels.flatten(1).tolist(), weight.tolist()]

    def loss():
        matrix = matrix_of(torch.tensor(lists[0], dtype=torch.float64).reshape(2, 1, 3, 3), 1, (4, 4))
        pooled = [(time, n // 4) for time, n in continuous.layer(events, matrix.tolist(), CONSTANTS)]
        out = continuous.layer(pooled, [[share * value for value in row] for row in lists[1]], CONSTANTS)
        times = continuous.first_times(out, 3, CONSTANTS)
        return sum(factor * value**2 for factor, value in zip(factors.tolist(), times))

    expected = [torch.tensor(grad).flatten() for grad in continuous.finite_differences(loss, lists)]
    errors = []
    for dt in (0.02, 0.01, 0.0025):
        options = constants_of_steps(dt)
        first = snn.SparseConvSynaptic(1, 2, 3, input_size=4, **options, **EVENTPROP).double()
        second = snn.SparseSynaptic(2, 3, **options, **EVENTPROP).double()
        with torch.no_grad():
            first.weight.copy_(kernels)
            second.weight.copy_(weight)
        spikes = snn.SparsePool2d(2, mode=mode)(first(input_of_steps(events, 16, dt).with_maps((1, 4, 4))))
        (factors * (first_spike_times(second(spikes))[0] * dt) ** 2).sum().backward()
        found = torch.cat([first.weight.grad.flatten(), second.weight.grad.flatten()])
        errors.append(float((found - torch.cat(expected)).norm() / torch.cat(expected).norm()))
    large, small, smallest = errors
    assert small < 0.03
    assert large > 1.5 * small > 3 * smallest


# ---- spikes, times and gradients of a layer


@pytest.mark.parametrize("reset_mechanism", ["subtract", "zero"])
def test_the_spikes_are_those_of_the_surrogate(reset_mechanism):
    x = spikes_in()
    layers = [layer_of(reset_mechanism=reset_mechanism, gradient=each) for each in ("surrogate", "eventprop")]
    layers[0].path = "sparse"
    expected, found = (layer(x) for layer in layers)
    assert torch.equal(found.to_dense(), expected.to_dense())
    assert torch.equal(found.counts, expected.counts[..., :1].expand(-1, -1, 2))
    assert found.num_spikes > 50
    assert layers[1].activity == found.activity
    with torch.no_grad():
        assert torch.equal(layers[1].membranes(x), layers[0].membranes(x))


def test_times_are_within_their_step():
    layer = layer_of()
    x = spikes_in(rate=0.5)
    spikes, mem = layer(x), layer_of(gradient="surrogate").membranes(x)
    is_spike = torch.arange(spikes.capacity) < spikes.counts[..., :1]
    t, b, slot = is_spike.nonzero().T
    assert (t == 0).any()
    n = spikes.ids[t, b, slot].long()
    before = torch.where(t > 0, mem[t - 1, b, n], 0)
    part = (1 - before) / (mem[t, b, n] - before)
    torch.testing.assert_close(spikes.times[is_spike], t + part)
    first = first_spike_times(spikes)
    dense = torch.where(spikes.to_dense() > 0, 1.0, 0.0).detach()
    steps = torch.where(dense.any(0), dense.argmax(0), spikes.num_steps)
    assert torch.equal(first.floor().long(), steps)


def test_a_silent_neuron_has_the_time_of_the_end_and_no_gradient():
    layer = layer_of()
    with torch.no_grad():
        layer.weight[3] = -1
    times = first_spike_times(layer(spikes_in()))
    assert torch.equal(times[:, 3], torch.full((3,), 25.0, dtype=torch.float64))
    times.sum().backward()
    assert not layer.weight.grad[3].any()
    assert layer.weight.grad[4].any()


def test_a_bias_is_an_input_that_spikes_at_every_step():
    x = spikes_in()
    layer, wider = layer_of(bias=True, input_scale=0.5), layer_of(inputs=21, input_scale=0.5)
    with torch.no_grad():
        layer.bias.uniform_(0, 0.1)
        wider.weight[:, :20], wider.weight[:, 20] = layer.weight, layer.bias / 0.5
    for each, spikes in ((layer, x), (wider, torch.nn.functional.pad(x.to_dense(), (0, 1), value=1.0))):
        first_spike_times(each(spikes)).sum().backward()
    torch.testing.assert_close(layer.weight.grad, wider.weight.grad[:, :20])
    torch.testing.assert_close(layer.bias.grad, wider.weight.grad[:, 20] / 0.5)


def test_a_delay_is_a_later_input():
    grads = []
    x = spikes_in().to_dense()
    later = torch.cat([torch.zeros_like(x[:4]), x[:-4]])
    for spikes, delay in ((x, 4), (later, 0)):
        first, second = layer_of(neurons=20), layer_of()
        first_spike_times(second(first(spikes), delay=delay) if delay else second(first(spikes))).sum().backward()
        grads.append(second.weight.grad)
    assert all(grad.any() for grad in grads)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_is_the_layer_of_its_matrix(bias, each):
    options = {"alpha": 0.8, "beta": 0.9, "input_scale": 0.7, "bias": bias}
    if each:
        options.update(beta=torch.tensor([0.9, 0.8, 0.7]), threshold=torch.tensor([1.0, 0.8, 0.9]))
    layers = [snn.SparseConvSynaptic(2, 3, 2, **options, gradient=g).double() for g in ("eventprop", "surrogate")]
    channels = {name: value.repeat_interleave(12) if each and name in ("beta", "threshold") else value
                for name, value in options.items()}  # fmt: skip
    whole = snn.SparseSynaptic(40, 36, **channels, **EVENTPROP).double()
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.linspace(-0.1, 0.8, 24).reshape(3, 2, 2, 2))
            if bias:
                layer.bias.copy_(torch.linspace(0, 0.1, 3))
    matrix = matrix_of(layers[0].weight, 2, (4, 5))
    whole.weight = nn.Parameter(matrix.detach())
    if bias:
        whole.bias = nn.Parameter(layers[0].bias.detach().repeat_interleave(12))
    below = layer_of(neurons=40)
    x = below(spikes_in())
    maps, other, expected = layers[0](x.with_maps((2, 4, 5))), layers[1](x.detach().with_maps((2, 4, 5))), whole(x)
    assert torch.equal(maps.to_dense(), other.to_dense())
    assert torch.equal(maps.to_dense(), expected.to_dense())
    assert maps.map_shape == (3, 3, 4)
    grads = []
    for spikes in (maps, expected):
        below.zero_grad()
        first_spike_times(spikes).square().sum().backward(retain_graph=True)
        grads.append(below.weight.grad.clone())
    assert grads[0].any()
    torch.testing.assert_close(*grads)
    (of_kernels,) = torch.autograd.grad(matrix, layers[0].weight, whole.weight.grad)
    torch.testing.assert_close(layers[0].weight.grad, of_kernels)
    if bias:
        torch.testing.assert_close(layers[0].bias.grad, whole.bias.grad.reshape(3, 12).sum(1))


def test_membranes_of_a_convolution():
    layer = snn.SparseConvSynaptic(1, 2, 3, input_size=(4, 5), alpha=0.8, beta=0.9, threshold=1e9, **EVENTPROP).double()
    surrogate = snn.SparseConvSynaptic(1, 2, 3, input_size=(4, 5), alpha=0.8, beta=0.9, threshold=1e9).double()
    surrogate.load_state_dict(layer.state_dict())
    x = spikes_in().with_maps((1, 4, 5))
    for each in (layer, surrogate):
        each.membranes(x).square().sum().backward()
    assert layer.membranes(x).shape == (25, 3, 2, 2, 3)
    torch.testing.assert_close(layer.weight.grad, surrogate.weight.grad)


@pytest.mark.parametrize("mode", ["max", "average", "sum"])
def test_pools_pass_on_times(mode):
    spikes = layer_of(neurons=24)(spikes_in()).with_maps((2, 4, 3))
    pooled = snn.SparsePool2d((2, 3), mode=mode)(spikes)
    assert pooled.num_spikes > 20
    dense = torch.full((25, 3, 24), math.nan, dtype=torch.float64)
    t, b, slot = (torch.arange(spikes.capacity) < spikes.counts[..., :1]).nonzero().T
    dense[t, b, spikes.ids[t, b, slot].long()] = spikes.times[t, b, slot].detach()
    windows = dense.unflatten(2, (2, 2, 6)).flatten(2, 3)  # [T, B, 4, 6]
    t, b, slot = (torch.arange(pooled.capacity) < pooled.counts[..., :1]).nonzero().T
    window, times = windows[t, b, pooled.ids[t, b, slot].long()], pooled.times[t, b, slot]
    first = window.isnan().logical_not().int().argmax(1, keepdim=True)
    expected = window.gather(1, first)[:, 0] if mode == "max" else window.nanmean(1)
    torch.testing.assert_close(times, expected)
    grad = torch.autograd.grad(times.sum(), spikes.times)[0]
    count = window.isnan().logical_not().sum(1)
    assert grad.count_nonzero() == (len(t) if mode == "max" else int(count.sum()))
    torch.testing.assert_close(grad.sum(), torch.tensor(float(len(t)), dtype=torch.float64))
    with pytest.raises(RuntimeError, match="only the times of these spikes have a gradient"):
        pooled.spike_count().sum().backward()


def test_recurrent_weights_between_two_groups_are_a_second_layer():
    """The first 20 neurons of a recurrent layer receive the input, and send their spikes to the others."""
    whole = layer_of(neurons=50, recurrent=True, input_scale=0.8)
    first, second = layer_of(neurons=20, input_scale=0.8), layer_of(input_scale=0.8)
    with torch.no_grad():
        whole.weight.zero_()[:20] = first.weight
        whole.recurrent_weight.zero_()[20:, :20] = second.weight
    below = layer_of(neurons=20)
    grads = []
    for way in (lambda x: second(first(x), delay=1), lambda x: whole(x)):
        below.zero_grad()
        times = first_spike_times(way(below(spikes_in())))[:, -30:]
        times.square().sum().backward()
        grads.append([below.weight.grad.clone()])
    assert (times < 25).sum() > 30
    grads[0] += [first.weight.grad, second.weight.grad]
    grads[1] += [whole.weight.grad[:20], whole.recurrent_weight.grad[20:, :20]]
    assert all(grad.any() for grad in grads[0])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("options", [{}, {"max_delay": 3}, {"bias": True, "reset_mechanism": "subtract"}])
def test_the_spikes_of_a_recurrent_layer_are_those_of_the_surrogate(options):
    layers = [layer_of(recurrent=True, gradient=each, **options) for each in ("surrogate", "eventprop")]
    layers[0].path = "sparse"
    layers[1].load_state_dict(layers[0].state_dict())
    expected, found = (layer(spikes_in()) for layer in layers)
    assert torch.equal(found.to_dense(), expected.to_dense())
    assert found.num_spikes > 50
    first_spike_times(found).sum().backward()
    assert all(parameter.grad.any() for parameter in layers[1].parameters())


def test_membranes_of_a_recurrent_layer():
    layer = layer_of(recurrent=True, threshold=1e9)
    layer.membranes(spikes_in()).square().sum().backward()
    assert not layer.recurrent_weight.grad.any()
    plain = layer_of(threshold=1e9)
    plain.load_state_dict(layer.state_dict(), strict=False)
    plain.membranes(spikes_in()).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)


def test_synapses_of_one_delay_are_a_delay_of_the_layer():
    grads = []
    for options, delay in (({"max_delay": 4, "delay": 3.0}, 1), ({}, 4)):
        first, second = layer_of(neurons=20), layer_of(**options)
        first_spike_times(second(first(spikes_in()), delay=delay)).sum().backward()
        grads.append([first.weight.grad, second.weight.grad])
    assert all(grad.any() for grad in grads[0])
    torch.testing.assert_close(*grads)


def test_the_gradient_of_delays_is_that_of_a_later_arrival():
    """A loss of membranes is linear in the taps between whole delays."""
    layer, x = layer_of(max_delay=5, delay=2.5, threshold=1e9), spikes_in()
    layer.membranes(x).square().sum().backward()
    ends = []
    with torch.no_grad():
        for delay in (2.5 + 1e-5, 2.5 - 1e-5):
            layer.delay.fill_(delay)
            ends.append(layer.membranes(x).square().sum())
    torch.testing.assert_close(layer.delay.grad, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "copied", [copy.copy, lambda x: x.with_maps((4, 5, 1)), lambda x: x.to(torch.float64), lambda x: x[:, [0, 1, 2]]]
)
def test_copies_of_spikes_have_their_times(copied):
    grads = []
    for change in (lambda x: x, copied):
        first, second = layer_of(neurons=20), layer_of()
        first_spike_times(second(change(first(spikes_in())))).sum().backward()
        grads.append(first.weight.grad)
    assert grads[0].any()
    assert torch.equal(*grads)
    assert not first(spikes_in()).detach().times.requires_grad


def test_half_precision_weights_and_float32():
    for dtype in (torch.float32, torch.bfloat16):
        layer = layer_of(dtype=dtype)
        first_spike_times(layer(spikes_in())).sum().backward()
        assert layer.weight.grad.dtype == dtype
        assert layer.weight.grad.any()


def operator_arguments():
    layer = layer_of(bias=False)
    x = spikes_in()
    mem = layer_of(gradient="surrogate").membranes(x).detach()
    spikes = layer(x)
    early, late, _ = eventprop.crossings(mem, spikes, layer._event_layer(x, 0).neurons)
    slots = torch.randn_like(early)
    return eventprop.EventPropBackward(
        slots, spikes.ids, spikes.counts, early, late, torch.randn_like(mem), layer.alpha, layer.beta,
        layer.threshold, torch.randn(30, 30).double(), 30, True,
    )  # fmt: skip


@pytest.mark.slow
def test_opcheck():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    torch.library.opcheck(torch.ops.snnipu.eventprop_bwd.default, tuple(operator_arguments()))


def bwd_arguments(dtype, sizes, each, with_mem, need_change, recurrent=False):
    neurons = sizes[2]
    mem = torch.randn(sizes, dtype=dtype)
    spikes = snn.ops.select_spikes(mem, 0.5, 0.2)

    def decay():
        return torch.rand(neurons if each else 1, dtype=dtype) * 0.4 + 0.6

    slots = [torch.randn_like(spikes.values) for _ in range(3)]
    with_mem = torch.randn_like(mem) if with_mem else None
    return eventprop.EventPropBackward(
        slots[0], spikes.ids, spikes.counts, slots[1] / 9, slots[2] / 9, with_mem, decay(), decay(), decay(),
        torch.randn(neurons, neurons, dtype=dtype) / neurons if recurrent else None, neurons, need_change,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("each", "with_mem", "need_change", "recurrent"),
    [(0, 0, 1, 0), (1, 1, 0, 0), (1, 1, 1, 0), (1, 0, 0, 1), (0, 1, 1, 1)],
)
@pytest.mark.parametrize("sizes", [(0, 2, 5), (3, 0, 5), (1, 1, 1), (20, 3, 63), (7, 2, 1000)])
def test_the_kernel_is_the_reference(sizes, each, with_mem, need_change, recurrent, dtype):
    torch.manual_seed(3)
    arguments = bwd_arguments(dtype, sizes, *map(bool, (each, with_mem, need_change, recurrent)))
    found, expected = torch.ops.snnipu.eventprop_bwd(*arguments), eventprop.backward_reference(arguments)
    for one, other in zip(found, expected):
        assert one.shape == other.shape
        assert not other.numel() or relative_error(one, other) <= (1e-12 if dtype == torch.float64 else 1e-5)


def test_the_kernel_refuses_ids_out_of_range():
    arguments = bwd_arguments(torch.float32, (5, 2, 9), False, False, True)
    arguments.ids[2, 1, 0], arguments.counts[2, 1, 1] = 9, 1
    if "CPU" not in _library.REGISTERED["eventprop_bwd"]:
        pytest.skip("there is no kernel")
    with pytest.raises(RuntimeError, match="eventprop_bwd refused its arguments"):
        torch.ops.snnipu.eventprop_bwd(*arguments)


# ---- networks


@pytest.mark.parametrize("delay", [0, 1])
def test_a_network_is_its_layers(delay):
    torch.manual_seed(4)
    options = {"alpha": 0.8, "beta": [0.9, 0.85], "gradient": "eventprop"}
    net = snn.SparseNetwork([20, 30, 4], neuron="synaptic", delay=delay, **options).double()
    for layer in net.layers:
        nn.init.uniform_(layer.weight, -0.1, 0.5)
    x = spikes_in()
    first_spike_times(net(x)).sum().backward()
    grads = [layer.weight.grad.clone() for layer in net.layers]
    assert all(grad.any() for grad in grads)
    net.zero_grad()
    first_spike_times(net.layers[1](net.layers[0](x), delay=delay)).sum().backward()
    for layer, grad in zip(net.layers, grads):
        assert torch.equal(layer.weight.grad, grad)
    assert isinstance(net.layers[0], snn.SparseSynaptic)
    assert net.layers[1].beta == pytest.approx(0.85)


@pytest.mark.parametrize("gradient", ["eventprop", "surrogate"])
def test_a_network_on_maps(gradient):
    torch.manual_seed(5)
    net = snn.SparseNetwork(
        [(1, 8, 8), "3C3", "MP2", "4C2", "SP2", 5],
        neuron="synaptic",
        alpha=0.8,
        beta=0.9,
        delay=0,
        gradient=gradient,
    ).double()
    kinds = [snn.SparseConvSynaptic, snn.SparseConvSynaptic, snn.SparseSynaptic]
    assert [type(layer) for layer in net.layers] == kinds
    for layer in net.layers:
        nn.init.uniform_(layer.weight, -0.1, 0.6)
    x = spikes_in(inputs=64)
    out = net(x)
    (first_spike_times(out) if gradient == "eventprop" else out.spike_count()).sum().backward()
    assert all(layer.weight.grad.any() for layer in net.layers)
    last = x.with_maps((1, 8, 8))
    for index, layer in enumerate(net.layers):
        last = net.pooled(index, layer(last))
    assert torch.equal(last.to_dense(), out.to_dense())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neuron": "alpha"}, "neuron must be 'leaky' or 'synaptic', got 'alpha'"),
        ({"neuron": "synaptic"}, "alpha must be given with neuron='synaptic'"),
        ({"alpha": 0.9}, "alpha must be None with neuron='leaky'"),
        ({"gradient": "eventprop"}, "gradient must be 'surrogate' with neuron='leaky', got 'eventprop'"),
        ({"neuron": "synaptic", "alpha": 0.9, "gradient": "eventprop", "max_spikes": 3}, "max_spikes must be None"),
    ],
)
def test_networks_options(options, message):
    with pytest.raises(ValueError, match=message):
        snn.SparseNetwork(**{"sizes": [3, 4], "beta": 0.9, **options})


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient": "exact"}, "gradient must be 'surrogate' or 'eventprop', got 'exact'"),
        ({"grad_threshold": 0.5}, "grad_threshold must be None with gradient"),
        ({"max_spikes": 5}, "max_spikes must be None with gradient"),
        ({"spike_grad": snn.surrogate.atan()}, "spike_grad must be None with gradient"),
        ({"learn_beta": True}, "learn_beta must be False with gradient"),
        ({"reset_mechanism": "none"}, "reset_mechanism must not be 'none' with gradient"),
        ({"path": "dense"}, "path must not be 'dense' with gradient"),
        ({"delay": 2.0}, "delay needs max_delay"),
        ({"path": "fast"}, "path must be 'auto', 'sparse' or 'dense', got 'fast'"),
        ({"threshold": 0.0}, "threshold must be above 0 with gradient"),
        ({"alpha": 0.0}, "alpha must be above 0 and at most 1 with gradient"),
        ({"beta": 1.5}, "beta must be above 0 and at most 1 with gradient"),
    ],
)
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        layer_of(**options)


def test_other_gradients_are_refused():
    layer, x = layer_of(neurons=20), spikes_in()
    surrogate = layer_of(gradient="surrogate")
    for loss in (layer(x).spike_count().sum(), layer(x).to_dense().sum(), surrogate(layer(x)).values.sum()):
        with pytest.raises(RuntimeError, match="only the times of these spikes have a gradient"):
            loss.backward()
    for other in (layer_of(neurons=20, gradient="surrogate")(x), layer(x)[:10], torch.rand(5, 2, 20).requires_grad_()):
        with pytest.raises(ValueError, match="x must be spikes without a gradient of their values"):
            layer(other)
    for other in (x, layer(x)[5:], layer(x).trim()):
        with pytest.raises(ValueError, match='spikes must be those of a layer with gradient="eventprop"'):
            first_spike_times(other)
    with pytest.raises(ValueError, match="membranes: the neurons of a layer"):
        layer.membranes(x)
    layer.max_spikes = 3
    with pytest.raises(ValueError, match="max_spikes must be None"):
        layer(x)
    with pytest.raises(ValueError, match="online rules need gradient=\"surrogate\", got 'eventprop'"):
        snn.Online(nn.Sequential(layer_of()), rule="ottt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layer: setattr(layer, "reset_mechanism", "none"), "reset_mechanism must not be 'none'"),
        (lambda layer: setattr(layer, "path", "dense"), "path must be 'sparse' with gradient=.*, got 'dense'"),
        (lambda layer: layer.beta.fill_(1.5), "beta must be above 0 and at most 1 with gradient"),
        (lambda layer: layer.threshold.requires_grad_(), "threshold must not require a gradient"),
    ],
)
def test_later_changes_are_refused(change, message):
    layer = layer_of()
    change(layer)
    with pytest.raises(ValueError, match=message):
        layer(spikes_in())
    with pytest.raises(ValueError, match=message):
        layer.membranes(spikes_in())


def test_repr_and_copies():
    layer = layer_of(3, 4)
    assert repr(layer) == (
        "SparseSynaptic(in_features=3, out_features=4, alpha=0.8, beta=0.9, threshold=1, reset_mechanism='zero', "
        "path='sparse', gradient='eventprop')"
    )
    x = spikes_in(inputs=3, rate=0.5)
    assert torch.equal(copy.deepcopy(layer)(x).times, layer(x).times)
