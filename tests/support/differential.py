"""Random networks, calls and changes between calls against snnTorch's own loop: ``make fuzz-numbers``.

``python tests/support/differential.py --seconds 600 --seed 0 --kinds networks`` prints each case with a difference.
``--case networks:12`` runs one. Family and seed alone determine a case.
"""

import collections
import contextlib
import copy
import functools
import pathlib
import random
import sys
import traceback
import warnings

import snntorch
import torch
from snntorch import surrogate
from torch import nn

import snnipu as snn
from snnipu import equations

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from online import drawn
from online import steps as explicit_steps
from support import delays, seeds
from support.loop_programs import Spike
from support.zeros import events_taken

COMPARED = collections.Counter()  # calls whose results were compared, and calls whose gradients were compared
STRIDED = ("contiguous", "time last", "every second", "reversed batch", "expanded")


class Refused(Exception):
    """snnTorch itself cannot run this."""


def assert_same(what, actual, expected, tolerance=None):
    """Check equality bit by bit, or with ``tolerance`` relative to the largest number."""
    largest = float(expected.detach().abs().max()) if tolerance and expected is not None and expected.numel() else 1.0
    close = {"rtol": 0, "atol": (tolerance or 0) * max(1.0, largest), "equal_nan": tolerance is None}
    torch.testing.assert_close(actual, expected, **close, msg=lambda text: f"{what}: {text}")


def scale_of(gradients):
    """Return the largest gradient, at least 1: the scale for gradients in which terms cancel."""
    return max([1.0, *(float(g.abs().max()) for g in gradients.values() if g is not None and g.numel())])


# ---- networks of ordinary modules and neurons


SURROGATES = (
    lambda: None,
    lambda: surrogate.fast_sigmoid(slope=10),
    lambda: surrogate.atan(alpha=3.0),
    lambda: surrogate.sigmoid(slope=5),
    lambda: surrogate.triangular(),
    lambda: surrogate.straight_through_estimator(),
    lambda: surrogate.SFS(slope=10, B=0.5),
    lambda: Spike.apply,
)


def parameter(draw, shape, low, high):
    """Draw a number, a tensor of one element, or a tensor with a value per neuron or channel."""
    kind = draw.choice(["number", "number", "scalar", "each"])
    if kind == "number":
        return draw.choice([low, high, draw.uniform(low, high)])
    if kind == "scalar":
        return torch.tensor(draw.uniform(low, high))
    size = shape if len(shape) == 1 else (shape[0], 1, 1)
    return torch.rand(size, generator=torch.Generator().manual_seed(draw.randrange(2**31))) * (high - low) + low


def neuron(draw, shape, behind_norm=False):
    """Draw the class name and arguments of a neuron."""
    names = ["Leaky"] * 4 + ["Lapicque", "Synaptic", "Alpha", "RLeaky", "RSynaptic"]
    if not behind_norm:  # a norm of a silent layer gives zeros with rounding, whose sign DeltaLeaky's gradient uses
        names.append("DeltaLeaky")
    name = draw.choice(names)
    options = {
        "beta": parameter(draw, shape, 0.0, 1.0),
        "threshold": draw.choice([1.0, draw.uniform(0.1, 1.5)]),
        "spike_grad": draw.choice(SURROGATES)(),
        "reset_mechanism": draw.choice(["subtract", "zero", "none"]),
        "init_hidden": draw.random() < 0.3,
        "learn_beta": draw.random() < 0.3,
        "learn_threshold": draw.random() < 0.3,
    }
    if name == "Leaky" and draw.random() < 0.3:
        options["threshold"] = parameter(draw, shape, 0.1, 1.5)
    if name in ("Leaky", "Synaptic", "RLeaky") and draw.random() < 0.3:  # RSynaptic fails at its first step
        options["reset_delay"] = False
    if name in ("Synaptic", "Alpha", "RSynaptic"):
        options["alpha"] = parameter(draw, shape, 0.0, 1.0)
        options["learn_alpha"] = draw.random() < 0.3
    if name == "Alpha":  # Alpha has no delay of its currents where both are equal
        options["alpha"], options["beta"] = draw.uniform(0.6, 0.95), draw.uniform(0.1, 0.5)
    if name == "Leaky" and draw.random() < 0.2:
        options["graded_spikes_factor"] = draw.uniform(0.5, 2)
        options["learn_graded_spikes_factor"] = draw.random() < 0.5
    if name == "Leaky" and len(shape) == 1 and draw.random() < 0.1:
        options["inhibition"] = True
    if name.startswith("R"):
        options["all_to_all"] = len(shape) == 1 and draw.random() < 0.5
        if options["all_to_all"]:
            options["linear_features"] = shape[0]
        options["V"] = draw.uniform(-1, 1)
        options["learn_recurrent"] = draw.random() < 0.7
    if name == "Lapicque":
        options["beta"] = draw.uniform(0.1, 0.95)
    if name == "DeltaLeaky":
        options = {
            "beta": draw.uniform(0.05, 1),  # for smaller values the changes of a constant input soon are pure rounding
            "delta_threshold": draw.uniform(0.05, 0.5),
            "init_hidden": options["init_hidden"],
        }
    return name, options


def layers(draw):
    """Draw (kind, arguments) of each module, and the shape of the input of a step."""
    modules = []
    if draw.random() < 0.35:
        channels, side = draw.randint(1, 5), draw.randint(4, 9)
        shape = start = (channels, side, side)
        for _ in range(draw.randint(1, 2)):
            out, kernel = draw.randint(1, 6), draw.choice([1, 3, 5])
            if shape[1] < 2:
                break
            settings = {"in_channels": shape[0], "out_channels": out, "kernel_size": kernel, "padding": kernel // 2}
            modules.append(("Conv2d", settings))
            shape = (out, *shape[1:])
            if draw.random() < 0.2:
                modules.append(("BatchNorm2d", {"num_features": out}))
            modules.append(neuron(draw, shape, "Norm" in modules[-1][0]))
            if draw.random() < 0.4:
                modules.append((draw.choice(["MaxPool2d", "AvgPool2d"]), {"kernel_size": 2}))
                shape = (out, shape[1] // 2, shape[2] // 2)
        modules.append(("Flatten", {}))
        width = shape[0] * shape[1] * shape[2]
    else:
        width = draw.randint(1, 40)
        start = (width,)
    for last in [False] * draw.randint(0, 2) + [True]:
        out = draw.randint(1, 40)
        modules.append(("Linear", {"in_features": width, "out_features": out, "bias": draw.random() < 0.8}))
        if draw.random() < 0.15:
            modules.append(("LayerNorm", {"normalized_shape": out}))
        modules.append(neuron(draw, (out,), "Norm" in modules[-1][0]))
        if not last and draw.random() < 0.15:
            modules.append(("Dropout", {"p": 0.5}))
        width = out
    return modules, start


def single_neuron(draw):
    """Draw a single neuron, in the form of ``layers``."""
    shape = (draw.randint(1, 40),) if draw.random() < 0.7 else (draw.randint(1, 4), *[draw.randint(1, 5)] * 2)
    return [neuron(draw, shape)], shape


def build(library, described):
    modules = []
    for kind, arguments in described:
        where = library if hasattr(snntorch, kind) else nn
        modules.append(getattr(where, kind)(**copy.deepcopy(arguments)))
    return modules


def is_neuron(module):
    return isinstance(module, snntorch.SpikingNeuron)


def loop(modules, x):
    """Run the loop that a user of snnTorch writes; return the last neuron's stacked outputs."""
    states = {}
    for module in modules:
        if is_neuron(module) and not module.init_hidden:
            state = module.reset_mem()
            single = isinstance(module, snntorch.DeltaLeaky) or not isinstance(state, tuple)
            states[module] = (state,) if single else state
    record = []
    for current in x.unbind():
        out = current
        for module in modules:
            if not is_neuron(module):
                out = module(out.to(x.dtype))
                continue
            output = module(out.to(x.dtype), *states.get(module, ()))  # its spikes are float32
            if module in states:
                keeps_spikes = isinstance(module, (snntorch.RLeaky, snntorch.RSynaptic))
                states[module] = output if keeps_spikes else output[1:]
            out = output[0] if isinstance(output, tuple) else output
        record.append(flat(output))
    return [torch.stack(part) for part in zip(*record)]


def flat(results):
    """Return the tensors of nested tuples."""
    return [results] if isinstance(results, torch.Tensor) else [tensor for part in results for tensor in flat(part)]


def as_dense(results):
    """Return the tensors of nested tuples, and spikes as a dense tensor."""
    return [results.to_dense()] if isinstance(results, snn.SparseSpikes) else flat(results)


def loss_places(results, parts):
    """Return the places of the results that the loss uses."""
    graph = [place for place, tensor in enumerate(results) if tensor.requires_grad]
    return {"spikes": graph[:1], "membrane": graph[-1:]}.get(parts, graph)


@contextlib.contextmanager
def unrounded(dtype):
    """Make snnTorch's spikes float64 too. Spikes in float32 are exact, but round the gradients that flow through them.

    Inhibiting neurons are left out: their membrane is a product with spikes.
    """
    if dtype == torch.float64:
        torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        if dtype == torch.float64:
            del torch.Tensor.float


def backward(graph, parts, seed):
    """Run the backward pass of a loss of results with random weights."""
    generator, total = torch.Generator().manual_seed(seed), 0
    for output in graph:
        weight = torch.randn(output.shape, generator=generator).to(output.dtype)
        total = total + ((output * weight)[-1] if parts == "last step" else output * weight).sum()
    if graph:
        total.backward()


def detach_states(modules):
    """Detach the states between batches, as users do with ``init_hidden``."""
    for module in modules:
        if is_neuron(module) and module.init_hidden:
            for name in ("spk", "syn", "syn_exc", "syn_inh", "mem"):
                if isinstance(getattr(module, name, None), torch.Tensor):
                    setattr(module, name, getattr(module, name).detach())


def inputs(draw, steps, batch, shape, dtype):
    """Draw currents or spikes in any memory layout."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    layout, spikes = draw.choice(STRIDED), draw.random() < 0.5

    def drawn(*size):
        numbers = torch.rand(size, generator=generator, dtype=torch.float64)
        numbers = (numbers < draw.choice([0.02, 0.1, 0.5])).double() if spikes else 4 * numbers - 1.5
        return numbers.to(dtype)

    if layout == "time last":
        return drawn(batch, *shape, steps).movedim(-1, 0)
    if layout == "every second":
        return drawn(2 * steps, batch, *shape)[::2]
    if layout == "reversed batch":
        return drawn(batch, steps, *shape).transpose(0, 1)
    if layout == "expanded":
        return drawn(1, batch, *shape).expand(steps, batch, *shape)
    return drawn(steps, batch, *shape)


def change(draw, parameters):
    """Change the parameters of all networks equally, in a way that training does.

    The changes are float32: snnTorch's spikes are float32 even in a float64 network, and round their factors.
    """
    how, seed = draw.choice(["in place", ".data", "load", "none", "optimizer"]), draw.randrange(2**31)
    for named in parameters:
        generator = torch.Generator().manual_seed(seed)
        for p in named.values():
            added = 0.1 * torch.randn(p.shape, generator=generator)
            added = (p.detach().float() + added).to(p.dtype) - p.detach()
            if how == "in place":
                with torch.no_grad():
                    p.add_(added)
            elif how == ".data":
                p.data += added
            elif how == "load":
                nn.ParameterList([p]).load_state_dict({"0": (p + added).detach()})
            elif how == "optimizer":
                p.grad = -added
                torch.optim.SGD([p], lr=1.0).step()


def networks(seed, described=layers, trained=0.6):
    """Compare snnTorch's loop with the same loop of ours bit by bit, and with ``MultiStep`` up to rounding."""
    draw = random.Random(seed)
    described, shape = described(draw)
    dtype = draw.choice([torch.float32, torch.float64, torch.float64])
    torch.default_generator.manual_seed(seed)
    try:
        theirs = build(snntorch, described)
    except Exception as error:
        raise Refused(str(error)) from error
    state = nn.ModuleList(theirs).state_dict()
    nets = [theirs]
    for _ in range(2):
        torch.default_generator.manual_seed(seed)
        ours = build(snn, described)
        if not any(kind == "Lapicque" for kind, _ in described):  # its R has a graph that contains a buffer
            nn.ModuleList(ours).load_state_dict(state)
        nets.append(ours)
    training = draw.random() < 0.8
    for net in nets:
        nn.ModuleList(net).to(dtype).train(training)
    inhibits = any(is_neuron(module) and module.inhibition for module in theirs)
    normed = any(isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)) for module in theirs)
    multi = snn.MultiStep(*nets[2])
    parameters = [dict(nn.ModuleList(net).named_parameters()) for net in nets]
    batch = draw.randint(1, 4)
    goes_on = any(is_neuron(module) and module.init_hidden for module in theirs)
    by_events = draw.random() < 0.7
    for call in range(draw.randint(1, 3)):
        steps = draw.randint(1, 7)
        if not goes_on and draw.random() < 0.5:
            batch = draw.randint(1, 4)
        x = inputs(draw, steps, batch, shape, dtype)
        train = draw.random() < trained
        parts = draw.choice(["all", "spikes", "membrane", "last step"])
        upstream, results = draw.randrange(2**31), []
        draws = draw.randrange(2**31)
        learn_input = draw.random() < 0.5
        for place, net in enumerate(nets):
            leaf = x.detach().requires_grad_(train and learn_input)
            torch.default_generator.manual_seed(draws)
            for p in parameters[place].values():
                p.grad = None
            function = multi if place == 2 else functools.partial(loop, net)
            around = contextlib.nullcontext() if place or inhibits else unrounded(dtype)
            if place == 2 and by_events:
                around = events_taken()
            try:
                with torch.set_grad_enabled(train), around:
                    outputs = flat(function(leaf))
                if place == 0:
                    places = loss_places(outputs, parts)
                backward([outputs[number] for number in places], parts, upstream)
            except Exception as error:
                if place:
                    raise
                raise Refused(str(error)) from error
            grads = {name: p.grad for name, p in parameters[place].items()}
            results.append(([output.detach() for output in outputs], leaf.grad, grads))
            detach_states(net)
        (expected, expected_x, expected_grads), loop_found, multi_found = results
        dropped = training and any(isinstance(m, nn.Dropout) for m in theirs)
        for name, (actual, found_x, found_grads), tolerance in (
            ("loop", loop_found, None),
            ("MultiStep", multi_found, 1e-9 if dtype == torch.float64 else None),
        ):
            if name == "MultiStep" and (dropped or dtype != torch.float64):
                continue  # dropout masks come in another order, and a spike may flip where a product rounds differently
            label = f"call {call}, {name}"
            for number, (output, other) in enumerate(zip(actual, expected)):
                assert_same(f"{label}, result {number}", output.to(other.dtype), other, tolerance)
            # Spikes have float32 gradients if they feed a layer, inhibit, or are a state. The rounding of a sum of a
            # thousand float32 terms is 1e-5. The norm of a silent layer divides it by the root of its eps.
            single = len(theirs) == 1
            spikes_on = inhibits or isinstance(theirs[0], (snntorch.RLeaky, snntorch.RSynaptic))
            in_double = 1e-6 if not single else 1e-5 if spikes_on else 1e-9
            rounding = 1e-3 if normed else in_double if dtype == torch.float64 else 1e-4
            largest = scale_of(expected_grads)
            COMPARED["calls"] += name == "loop"
            if any(g is not None and not g.isfinite().all() for g in (expected_x, *expected_grads.values())):
                continue  # snnTorch's sigmoid is inf / inf far below the threshold
            assert_same(f"{label}, gradient of x", found_x, expected_x, rounding * largest)
            for key, grad in expected_grads.items():
                if key.endswith("graded_spikes_factor") and found_grads[key] is None and grad is not None:
                    grad = None if grad.abs().max() < rounding else grad  # snnTorch divides by its own factor
                if steps == 1 and grad is None and found_grads[key] is not None and not found_grads[key].any():
                    continue  # the threshold of one step, which only the next step would read
                assert_same(f"{label}, gradient of {key}", found_grads[key], grad, rounding * largest)
            COMPARED["gradients"] += name == "loop" and bool(places) and train
        if draw.random() < 0.7:
            change(draw, parameters)
        if goes_on and draw.random() < 0.3:
            for net in nets:
                for module in net:
                    if is_neuron(module):
                        module.reset_mem()


# ---- event-driven networks


def twins(draw, delays=(0, 1)):
    """Draw a ``SparseNetwork``, its dense twin in float64, and the shape of a step."""
    on_maps = draw.random() < 0.5
    if on_maps:
        side = draw.randint(5, 12)
        sizes = [(draw.randint(1, 3), side, side)]
        sizes.append(f"{draw.randint(1, 20)}C{draw.choice([1, 3, 5])}{draw.choice(['', 'P1', 'S2', 'P2'])}")
        if draw.random() < 0.5:
            sizes.append("MP2" if side > 6 and "S2" not in sizes[1] else "MP1")
        sizes += [draw.randint(1, 30)] * draw.randint(0, 1)
    else:
        sizes = [draw.randint(1, 60) for _ in range(draw.randint(2, 4))]
    options = {
        "beta": draw.uniform(0, 1),
        "threshold": draw.uniform(0.1, 1.5),
        "reset_mechanism": draw.choice(["zero", "subtract", "none"]),
        "delay": draw.choice(delays),
        "bias": draw.random() < 0.5,
        "learn_beta": draw.random() < 0.5,
        "learn_threshold": draw.random() < 0.5,
        "input_scale": draw.uniform(0.5, 3),
        "spike_grad": draw.choice([None, snn.surrogate.fast_sigmoid(10), snn.surrogate.atan(2.0)]),
    }
    net = snn.SparseNetwork(sizes, path="sparse", **options).double()
    twin = snn.SparseNetwork(sizes, path="dense", **options).double()
    twin.load_state_dict(net.state_dict())
    return net, twin, sizes[0] if on_maps else (sizes[0],)


def assert_agree(results, x, trained=True):
    """Compare outputs and gradients of events and layers; ``x`` has a gradient where there is an event."""
    (actual, found_x, found_grads), (expected, expected_x, grads) = results
    assert_same("result", actual, expected, 1e-9)
    if expected_x is not None:
        where = x != 0
        assert_same("gradient of x", found_x[where], expected_x[where], 1e-9 * scale_of({"x": expected_x}))
    largest = scale_of(grads)
    for key, grad in grads.items():
        grad = torch.zeros_like(found_grads[key]) if grad is None and found_grads[key] is not None else grad
        assert_same(f"gradient of {key}", found_grads[key], grad, 1e-9 * largest)
    COMPARED["calls"] += 1
    COMPARED["gradients"] += trained


def trained(layer, function, x, seed, learns_input=True):
    """Return a dense result of ``function``, and the gradients of a weighted sum: of the input and the parameters."""
    leaf = x.clone().requires_grad_(learns_input)
    layer.zero_grad()
    out = function(leaf)
    out = (out.to_dense() if isinstance(out, snn.SparseSpikes) else out).flatten(2)
    if out.requires_grad:
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=out.dtype)
        (out * weight).sum().backward()
    return out.detach(), leaf.grad, {name: p.grad for name, p in layer.named_parameters()}


def as_spikes(x, shape):
    """Return dense spikes ``[T, B, *shape]`` as ``SparseSpikes``."""
    spikes = snn.SparseSpikes.from_dense(x.flatten(2))
    return spikes.with_maps(shape) if len(shape) == 3 else spikes


def events(seed):
    """Compare a ``SparseNetwork`` of kernels with its dense twin."""
    draw = random.Random(seed)
    torch.default_generator.manual_seed(seed)
    net, twin, shape = twins(draw)
    for _ in range(draw.randint(1, 2)):
        steps, batch = draw.randint(1, 8), draw.randint(1, 4)
        activity = draw.choice([0.0, 0.02, 0.2, 0.6, 1.0])
        x = (torch.rand(steps, batch, *shape) < activity).double()
        if draw.random() < 0.3:
            x = x * torch.randn_like(x)
        train = draw.random() < 0.6
        learns_input = train and draw.random() < 0.5
        with torch.set_grad_enabled(train):
            results = [
                trained(network, lambda leaf, network=network: network(as_spikes(leaf, shape)), x, seed, learns_input)
                for network in (net, twin)
            ]
        assert_agree(results, x, train)
        with torch.no_grad():
            for p, q in zip(net.parameters(), twin.parameters()):
                added = 0.1 * torch.randn_like(p)
                p.add_(added)
                q.add_(added)


# ---- event-driven layers


def fully_connected(draw):
    """Draw a layer, the shape of a step, and a function from dense inputs to the currents ``[T, B, out]``."""
    kind = draw.choice(["SparseLinear", "SparseLeaky", "SparseLeaky", "SparseSynaptic", "DelayLinear", "DelayLinear"])
    inputs, outputs = draw.choice([1, 5, draw.randint(1, 70)]), draw.choice([1, 8, 16, draw.randint(1, 70)])
    options = {"bias": draw.random() < 0.6}
    if kind == "DelayLinear" or (kind != "SparseLinear" and draw.random() < 0.3):
        longest = draw.randint(0, 9)
        sizes = draw.choice([(outputs, inputs), (1, inputs), (outputs, 1), ()])
        options.update(max_delay=longest, delay=draw.choice([None, torch.rand(sizes) * longest, float(longest)]))
        options["learn_delay"] = draw.random() < 0.8
    if kind == "DelayLinear":
        options["kernel"], options["sigma"] = draw.choice(["linear", "gaussian"]), draw.uniform(0.3, 2)
    if kind in ("SparseLeaky", "SparseSynaptic"):
        options.update(neurons_options(draw, outputs, kind))
    if kind == "SparseLeaky":
        options["recurrent"] = draw.random() < 0.3
    layer = getattr(snn, kind)(inputs, outputs, **options).double()

    def arrives(x):
        if getattr(layer, "max_delay", None) is None:
            return nn.functional.linear(x, layer.weight)
        kernel = (getattr(layer, "kernel", "linear"), getattr(layer, "sigma", 1.0))
        return delays.weighted(x, layer.weight, layer.delay, None, layer.max_delay, *kernel)

    return layer, (inputs,), arrives


def convolution(draw):
    """Draw the same for maps, ``[T, B, channels, height, width]``."""
    groups = draw.choice([1, 1, 1, 2, 3])
    channels, out = groups * draw.randint(1, 3), groups * draw.choice([1, 4, draw.randint(1, 20)])
    kernel, padding = (draw.randint(1, 4), draw.randint(1, 4)), (draw.randint(0, 2), draw.randint(0, 2))
    stride, dilation = (draw.randint(1, 3), draw.randint(1, 3)), (draw.randint(1, 2), draw.randint(1, 2))
    size = tuple(d * (k - 1) + 1 + draw.randint(0, 6) for k, d in zip(kernel, dilation))
    geometry = (stride, padding, dilation, groups)
    if draw.random() < 0.5:
        layer = snn.SparseConv2d(channels, out, kernel, *geometry, bias=draw.random() < 0.6)
    else:
        options = neurons_options(draw, out, "SparseLeaky")
        layer = snn.SparseConvLeaky(channels, out, kernel, *geometry, bias=draw.random() < 0.6, **options)
    layer = layer.double()

    def arrives(x):
        maps = nn.functional.conv2d(x.flatten(0, 1), layer.weight, None, *geometry)
        return maps.unflatten(0, x.shape[:2])

    return layer, (channels, *size), arrives


def neurons_options(draw, neurons, kind):
    options = {
        "beta": draw.choice([draw.uniform(0, 1), torch.rand(neurons)]),
        "threshold": draw.uniform(0.1, 1.2),
        "reset_mechanism": draw.choice(["subtract", "zero", "none"]),
        "learn_beta": draw.random() < 0.5,
        "learn_threshold": draw.random() < 0.5,
        "input_scale": draw.choice([1.0, draw.uniform(0.5, 3)]),
    }
    if kind == "SparseSynaptic":
        options.update(alpha=draw.choice([draw.uniform(0, 1), torch.rand(neurons)]), learn_alpha=draw.random() < 0.5)
    return options


def by_equations(layer, current):
    """Return the spikes of the layer's neurons for this current; without neurons the current plus the bias."""
    per_neuron = (lambda p: p.reshape(-1, 1, 1)) if current.dim() == 5 else (lambda p: p)
    if not hasattr(layer, "beta"):
        return current if layer.bias is None else current + per_neuron(layer.bias)
    current = current * layer.input_scale
    current = current if layer.bias is None else current + per_neuron(layer.bias)
    names = [name for name in ("alpha", "beta", "threshold") if hasattr(layer, name)]
    values = {name: per_neuron(getattr(layer, name)) for name in names}
    equation = equations.synaptic if "alpha" in names else equations.leaky
    options = {"graded_spikes_factor": 1, "spike": explicit_steps.heaviside, "reset_mechanism": layer.reset_mechanism}
    states, record = [torch.zeros_like(current[0])] * (2 if "alpha" in names else 1), []
    for x in current:
        if getattr(layer, "recurrent_weight", None) is not None and record:
            x = x + layer.input_scale * record[-1] @ layer.recurrent_weight.t()
        spk, *states = equation(x, *states, **values, **options)
        record.append(spk)
    return torch.stack(record)


def event_layers(seed):
    """Compare event-driven products, delays, neurons or recurrence with their equations, in float64."""
    draw = random.Random(seed)
    torch.default_generator.manual_seed(seed)
    layer, shape, arrives = draw.choice([fully_connected, convolution])(draw)
    if hasattr(layer, "path"):
        delayed = getattr(layer, "max_delay", None) is not None
        layer.path = "sparse" if delayed else draw.choice(["sparse", "sparse", "auto", "dense"])
    torch.set_num_threads(draw.choice([1, 2]))
    for _ in range(draw.randint(1, 2)):
        steps, batch = draw.choice([1, draw.randint(1, 20)]), draw.choice([1, draw.randint(1, 20)])
        x = (torch.rand(steps, batch, *shape) < draw.choice([0.0, 0.03, 0.2, 1.0])).double()
        x = x * torch.randn_like(x) if draw.random() < 0.4 else x
        spikes = draw.random() < 0.7
        calls = (
            lambda leaf, spikes=spikes: layer(as_spikes(leaf, shape) if spikes else leaf),
            lambda leaf: by_equations(layer, arrives(leaf)),
        )
        assert_agree([trained(layer, call, x, seed) for call in calls], x)
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(0.1 * torch.randn_like(p))


# ---- learning online


def run_stream(online, x, weights, cuts):
    """Return the results of a stream that is cut at these steps, and the gradients of their weighted sum."""
    lengths = [end - begin for begin, end in zip((0, *cuts), (*cuts, len(x)))]
    return drawn.learn(online, x, weights, lengths)[:2]


def learners(draw, rule):
    """Draw linear layers and neurons of a network that learns online, and the shape of a step."""
    modules, width = [], draw.randint(1, 12)
    shape = (width,)
    for last in [False] * draw.randint(0, 2) + [True]:
        out = draw.randint(1, 12)
        modules.append(nn.Linear(width, out))
        width = out
        if last and rule == "eprop":
            modules.append(snn.Leaky(beta=draw.uniform(0.3, 1), threshold=0.7, reset_mechanism="none"))
        while isinstance(modules[-1], nn.Linear):
            kind, options = neuron(draw, (out,))
            options["init_hidden"] = False
            if kind != "DeltaLeaky":
                options["spike_grad"] = None  # the surrogate of the explicit steps
            if kind == "Lapicque":
                options["learn_beta"] = False  # as in snnTorch, it can be differentiated only once
            with contextlib.suppress(TypeError, ValueError):  # snnTorch raises the same
                modules.append(getattr(snn, kind)(**options))
    return modules, shape


def online(seed):
    """Compare a stream of chunks with explicit steps in float64, or with one chunk of the dense layers."""
    draw = random.Random(seed)
    torch.default_generator.manual_seed(seed)
    rule = draw.choice(["sltt", "ottt", "eprop", "decolle", "snap1"])
    plain, twin = False, None
    if rule in ("sltt", "ottt") and draw.random() < 0.3:
        net, twin, shape = twins(draw, delays=(0,))
    elif rule in ("sltt", "ottt") and draw.random() < 0.5:
        first, shape, _ = draw.choice([fully_connected, convolution])(draw)
        flat_size = first(torch.zeros(1, 1, *shape, dtype=torch.float64)).shape[2:].numel()
        behind = [nn.Flatten()] if len(shape) == 3 and not isinstance(first, snn.SparseConvLeaky) else []
        behind = [snn.Leaky(beta=0.8), *behind] if not hasattr(first, "beta") else behind
        net = snn.MultiStep(first, *behind, nn.Linear(flat_size, 3), snn.Leaky(beta=0.9)).double()
    elif draw.random() < 0.6:
        modules, shape = learners(draw, rule)
        net, plain = snn.MultiStep(*modules).double(), True
    else:
        net, shape = drawn.network(draw, rule)
        net.eval()
    options = {}
    if rule == "decolle":
        options["readouts"] = draw.randint(1, 4)
    elif rule == "eprop":
        options["low_pass"] = draw.random() < 0.6
        options["feedback"] = draw.choice(["symmetric", "random", "adaptive"]) if plain else "symmetric"
    elif rule == "ottt" and draw.random() < 0.3:
        options.update(input_trace=draw.random() < 0.5, bias_trace=draw.random() < 0.5)
        plain = False  # the explicit steps lack these options
    try:
        learner = snn.Online(net, rule=rule, **options)
    except (TypeError, ValueError) as error:
        raise Refused(str(error)) from error
    steps, batch = draw.randint(1, 12), draw.randint(1, 3)
    x = (torch.rand(steps, batch, *shape) < draw.choice([0.05, 0.2, 0.6])).double() * draw.choice([1, 2])
    cuts = sorted(draw.sample(range(1, steps), draw.randint(0, steps - 1)))
    with torch.no_grad():
        whole = as_dense(net(x))
    weights = [torch.randn_like(part) for part in whole]
    try:
        with events_taken():
            outputs, actual = run_stream(learner, x, weights, cuts)
    except (TypeError, ValueError) as error:
        if plain:
            raise
        raise Refused(str(error)) from error
    for part, other in zip(outputs, whole):
        assert_same("result", part, other, 1e-9)
    if plain:
        trace_rule = "ottt" if rule == "decolle" else rule
        of = {"low_pass": float(modules[-1].beta)} if options.get("low_pass") else {}
        if rule == "decolle":
            of = {"readouts": list(learner.matrices), "local_loss": lambda readout: (readout - 1).pow(2).sum()}
        elif rule == "eprop":
            of["feedback"] = list(learner.matrices)
        pairs = explicit_steps.gradients(
            net, x, lambda t, *parts: sum((part * w[t]).sum() for part, w in zip(parts, weights)), trace_rule, **of
        )
        names = {id(p): name for name, p in learner.named_parameters()}
        expected = {names[id(p)]: grad for p, grad in pairs if p.requires_grad}
    else:
        if twin is not None:
            learner = snn.Online(twin, rule=rule, **options)
        with snn.dense_only():
            expected = run_stream(learner, x, weights, [])[1]
    largest = scale_of(expected)
    for name, grad in expected.items():
        assert_same(f"{rule}, gradient of {name}", actual.get(name), grad, 1e-9 * largest)
    COMPARED["calls"] += 1
    COMPARED["gradients"] += 1


FAMILIES = {
    "layers": event_layers,
    "online": online,
    "neurons": functools.partial(networks, described=single_neuron, trained=0.15),
    "networks": networks,
    "events": events,
}


def run(family, seed):
    """Return the error of one case, or an empty text if its numbers agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            FAMILIES[family](seed)
        except Refused:
            pass
        except AssertionError as error:
            return str(error)
    return ""


def failure(family, seed):
    try:
        return run(family, seed)
    except Exception:  # any exception is a failure
        return traceback.format_exc()


if __name__ == "__main__":
    torch.set_num_threads(1)
    status = seeds.main(__doc__.split("\n")[0], FAMILIES, failure)
    print(f"{COMPARED['calls']} calls were compared, {COMPARED['gradients']} with gradients")
    sys.exit(status)
