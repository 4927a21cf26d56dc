"""Random networks for online learning, and streams of chunks with their gradients."""

import torch
from torch import nn

import snnipu as snn

RULES = {
    "sltt": ("sltt", {}),
    "ottt": ("ottt", {}),
    "ottt-no-traces": ("ottt", {"input_trace": False, "bias_trace": False}),
    "eprop": ("eprop", {}),
    "eprop-now": ("eprop", {"low_pass": False}),
    "eprop-random": ("eprop", {"feedback": "random"}),
    "eprop-adaptive": ("eprop", {"feedback": "adaptive"}),
    "decolle": ("decolle", {"readouts": 2}),
    "snap1": ("snap1", {}),
}


def _batch_norm(dims):
    def make(shape):
        norm = getattr(nn, f"BatchNorm{dims}d")(shape[0]).eval()
        norm.running_mean.uniform_(-0.2, 0.2)
        norm.running_var.uniform_(0.5, 1.5)
        return norm

    return make


def _plain(kind, *arguments, **options):
    return lambda shape: kind(*arguments, **options)


# Type -> function that makes a module for steps of a shape, without the batch, and the dimensions of such a step (None:
# any).
KINDS = {
    **{
        kind: (_plain(kind), None)
        for kind in (
            *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
            *(nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.PReLU),
            *(nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Flatten),
        )
    },
    nn.Threshold: (_plain(nn.Threshold, 0.3, 0.1), None),
    nn.Softmax: (_plain(nn.Softmax, -1), None),
    nn.LogSoftmax: (_plain(nn.LogSoftmax, -1), None),
    nn.LayerNorm: (lambda shape: nn.LayerNorm(shape), None),
    nn.GroupNorm: (lambda shape: nn.GroupNorm(1, shape[0]), None),
    nn.Unflatten: (lambda shape: nn.Unflatten(1, (shape[0], 1)), 1),
    nn.BatchNorm1d: (_batch_norm(1), 1),
    nn.BatchNorm2d: (_batch_norm(2), 3),
    nn.BatchNorm3d: (_batch_norm(3), 4),
    nn.Upsample: (_plain(nn.Upsample, scale_factor=2), 3),
    nn.ZeroPad2d: (_plain(nn.ZeroPad2d, 1), 3),
    nn.PixelShuffle: (_plain(nn.PixelShuffle, 2), 3),
    **{
        getattr(nn, f"{kind}{dims}d"): (_plain(getattr(nn, f"{kind}{dims}d"), 2), dims + 1)
        for dims in (1, 2, 3)
        for kind in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
    },
    **{getattr(nn, f"Dropout{dims}d"): (_plain(getattr(nn, f"Dropout{dims}d")), dims + 1) for dims in (1, 2, 3)},
}
# More modules of these types.
MORE = [
    (lambda shape: nn.LayerNorm(shape[-1:], elementwise_affine=False), None),
    (lambda shape: nn.GroupNorm(1, shape[0], affine=False), None),
    (_plain(nn.ReLU, inplace=True), None),
    (lambda shape: nn.Dropout(inplace=True), None),
    (_plain(nn.Upsample, scale_factor=2, mode="bilinear"), 3),
]
# Type -> the dimensions of a step, without the batch; None: any.
WEIGHTS = {
    nn.Linear: None,
    **{getattr(nn, f"{kind}{dims}d"): dims + 1 for dims in (1, 2, 3) for kind in ("Conv", "ConvTranspose")},
}
STEPS = {1: (8,), 2: (4, 6), 3: (4, 6, 6), 4: (2, 4, 4, 4)}


def shape_of(module, shape):
    with torch.no_grad():
        return tuple(module.double()(torch.zeros(2, *shape, dtype=torch.float64)).shape[1:])


def fitting(draw, kinds, shape):
    """Draw a module and return it with the shape of its output; None if it does not take steps of this shape."""
    make, dims = draw.choice(kinds)
    if dims not in (None, len(shape)):
        return None
    module = make(shape).double().eval()
    try:
        after = shape_of(module, shape)
    except RuntimeError:  # for example too small for a pool
        return None
    random = isinstance(module, nn.modules.dropout._DropoutNd) and draw.random() < 0.5
    return (module.train(random), after) if min(after) else None


def weights(draw, shape):
    """Draw a layer with weights and return it with the shape of its output."""
    kind = draw.choice([k for k, dims in WEIGHTS.items() if dims in (None, len(shape))])
    bias = draw.random() < 0.7
    front = [nn.Flatten()] if kind is nn.Linear and len(shape) > 1 and draw.random() < 0.5 else []
    shape = shape_of(front[0], shape) if front else shape
    if kind is nn.Linear:
        layer = nn.Linear(shape[-1], draw.randint(2, 6), bias=bias)
    else:
        options = {"padding": draw.choice([0, 1])}
        if not kind.__name__.startswith("ConvTranspose"):
            options = draw.choice([options, options, {"padding": "same"}, {"padding": 1, "padding_mode": "circular"}])
        layer = kind(shape[0], draw.randint(1, 4), draw.choice([1, 3]), bias=bias, **options)
    try:
        after = shape_of(layer, shape)
    except RuntimeError:  # too small for the kernel
        return weights(draw, shape)
    with torch.no_grad():
        layer.weight.mul_(2)
    if draw.random() < 0.1:
        layer.weight.requires_grad_(False)
    return [*front, layer], after


def neuron(draw, shape, is_eprops_readout):
    if is_eprops_readout and draw.random() < 0.8:
        learns = draw.random() < 0.3
        return snn.Leaky(beta=draw.uniform(0.3, 1), threshold=0.5, reset_mechanism="none", learn_threshold=learns)
    kind = draw.choice(["Leaky"] * 4 + ["Synaptic", "Lapicque", "Alpha", "RLeaky", "RSynaptic", "recurrent"])
    beta = torch.rand(shape[-1]) * 0.5 + 0.4 if draw.random() < 0.2 else draw.uniform(0.4, 0.95)
    learns = {f"learn_{name}": draw.random() < 0.3 for name in ("beta", "threshold", "graded_spikes_factor")}
    how = {"threshold": 0.4, "reset_mechanism": draw.choice(["subtract", "zero", "none"])}
    if kind == "Leaky":
        return snn.Leaky(beta=beta, reset_delay=draw.random() < 0.7, **learns, **how)
    if kind == "Lapicque":
        return snn.Lapicque(beta=draw.uniform(0.4, 0.9), learn_threshold=learns["learn_threshold"], **how)
    if kind == "Alpha":
        return snn.Alpha(alpha=0.9, beta=0.8, **{**how, "threshold": 0.1})
    if kind == "Synaptic":
        return snn.Synaptic(alpha=0.6, beta=beta, learn_alpha=draw.random() < 0.3, **how)
    if kind == "RLeaky":
        return snn.RLeaky(beta=beta, V=0.3, all_to_all=False, learn_beta=learns["learn_beta"], **how)
    if kind == "RSynaptic":
        return snn.RSynaptic(alpha=0.6, beta=beta, V=0.3, all_to_all=False, **how)
    if len(shape) == 3:
        return snn.RLeaky(beta=beta, conv2d_channels=shape[0], kernel_size=3, **how)
    return snn.RLeaky(beta=beta, linear_features=shape[-1], **how)


def network(draw, rule):
    """Draw a network and return it with the shape of its input's steps."""
    first = shape = STEPS[draw.choice([1, 1, 1, 2, 3, 3, 4])]
    kinds, modules, count = [*KINDS.values(), *MORE], [], draw.randint(1, 3)

    def others(times):
        nonlocal shape
        for _ in range(times):
            drawn = fitting(draw, kinds, shape)
            if drawn is not None:
                modules.append(drawn[0])
                shape = drawn[1]

    if draw.random() < 0.1:
        modules.append(neuron(draw, shape, False))
    for number in range(count):
        others(draw.choice([0, 0, 1, 1, 2]))
        for _ in range(draw.choice([1] * 8 + [2])):
            layer, shape = weights(draw, shape)
            modules += layer
        others(draw.choice([0, 0, 1]))
        is_last = number == count - 1
        if not is_last or draw.random() < 0.9:
            modules.append(neuron(draw, shape, is_last and rule == "eprop"))
    return snn.MultiStep(*modules).double(), first


def flat(out):
    out = out.to_dense() if isinstance(out, snn.SparseSpikes) else out
    return [part for each in out for part in flat(each)] if isinstance(out, tuple) else [out]


def learn(online, x, upstream, lengths, begins=None):
    """Run a stream in chunks of these lengths; return its results, the gradients, and the gradient of ``x``.

    ``upstream`` are the gradients of the results. ``begins`` is called with the first step of each chunk.
    """
    online.reset()
    online.zero_grad()
    leaf, results, first = x.detach().clone().requires_grad_(x.requires_grad), [], 0
    for length in lengths:
        if begins is not None:
            begins(first)
        steps = slice(first, first + length)
        out = flat(online(leaf[steps], single=False))
        total = sum((part * grad[steps]).sum() for part, grad in zip(out, upstream))
        total = total + sum((readout - 1).square().sum() for readout in online.readouts)
        if total.requires_grad:
            total.backward()
        results.append([part.detach() for part in out])
        first += length
    grads = {name: p.grad.clone() for name, p in online.named_parameters() if p.grad is not None}
    return [torch.cat(parts) for parts in zip(*results)], grads, leaf.grad


def loss_of(online, out):
    """Return a loss of flat results and of DECOLLE's readouts, which saves none of them for the backward pass."""
    parts = [(place + 1) * part for place, part in enumerate(out)] + [readout - 1 for readout in online.readouts]
    return sum(part.square().sum() for part in parts)


def gradients(online, x, change=None, length=3, **how):
    """Return the gradients of a stream; ``change`` is called with each chunk and its results before ``backward()``."""
    online.reset()
    online.zero_grad()
    for chunk in x.clone().split(length):
        out = flat(online(chunk, **how))
        loss = loss_of(online, out)
        if change is not None:
            change(chunk, out)
        loss.backward()
    return {name: p.grad.clone() for name, p in online.named_parameters() if p.grad is not None}
