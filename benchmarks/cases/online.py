"""Online learning and backpropagation through time: a stream of T steps in chunks, forward and all gradients."""

import functools

import snntorch
import torch
from torch import nn
from torch.nn import functional

import snnipu
from benchmarks import braintrace, peers
from benchmarks.case import Case, Contender, Unavailable, Workload
from benchmarks.checks import check_close
from benchmarks.memory import available_memory
from benchmarks.sparse_problem import SnnTorchNet, linears, on_grid

INPUTS, OUTPUTS, CHUNK, LONG_CHUNK = 700, 20, 50, 200
ACTIVITY = 0.02
# Number of drawn chunks; the stream repeats them.
DRAWN = 4
TOLERANCE = 1e-4
CHECKED_STEPS = 3 * CHUNK // 2
# Minimum of bytes that backpropagation stores for each neuron or input, sample and step.
KEPT_BYTES = 8


class Problem:
    """The same stream, weights and upstream gradient of the output spikes for every contender."""

    def __init__(self, settings):
        self.settings = settings
        generator = torch.Generator().manual_seed(settings.seed)
        batch, sizes = settings.batch_size, [INPUTS, settings.neurons, settings.neurons, OUTPUTS]
        drawn = min(settings.steps, DRAWN * CHUNK)
        self.x = (torch.rand(drawn, batch, INPUTS, generator=generator) < ACTIVITY).float()
        scale = (3.0, 8.0, 8.0)
        # On a grid, so that the spikes do not depend on the order of sums.
        self.weights = [
            on_grid(factor * (2 * torch.rand(n, m, generator=generator) - 1) / m**0.5)
            for factor, m, n in zip(scale, sizes, sizes[1:])
        ]
        self.upstream = torch.randn(batch, OUTPUTS, generator=generator)

    def chunks(self, steps, length):
        """Yield the stream of ``steps`` in chunks; the drawn part is a whole number of them, or the whole stream."""
        for done in range(0, steps, length):
            start = done % len(self.x)
            yield self.x[start : start + min(length, steps - done)]

    def stream(self, steps):
        return torch.cat(list(self.chunks(steps, CHUNK)))

    def layers(self, neuron):
        """Return each linear layer and its neurons."""
        return [module for linear in linears(self.weights) for module in (linear, neuron())]

    def network(self, init_hidden=False):
        return snnipu.MultiStep(*self.layers(lambda: snnipu.Leaky(beta=self.settings.beta, init_hidden=init_hidden)))

    def snntorch_net(self):
        return SnnTorchNet([[linear] for linear in linears(self.weights)], self.settings.beta, None, False, "subtract")

    @torch.no_grad()
    def measured(self):
        """Return the spikes per neuron and step of each layer."""
        return {"activity": [float(spikes.mean()) for spikes in self.snntorch_net().all_layers(self.x)]}

    def by_snntorch(self, steps):
        """Return the gradients of the beginning of the stream by a loop over snnTorch's neurons."""
        net = self.snntorch_net()
        return torch.autograd.grad(self.loss(net(self.stream(steps))), net.weights())

    def loss(self, spk):
        """Return a loss of output spikes ``[T, B, outputs]``; it is linear, and so equal for every division."""
        return (spk * self.upstream).sum()

    def through_time(self, steps, net):
        """Return the gradients of the whole stream at once."""
        spk, _ = net(self.stream(steps))
        return list(torch.autograd.grad(self.loss(spk), list(net.parameters())))

    def truncated(self, steps, net):
        """Return the gradients of truncated backpropagation: each chunk is separate, and its states continue."""
        lifs = [module for module in net.modules() if isinstance(module, snnipu.Leaky)]
        net.zero_grad()
        for lif in lifs:
            lif.reset_mem()
        for chunk in self.chunks(steps, CHUNK):
            self.loss(net(chunk)[0]).backward()
            for lif in lifs:
                lif.mem = lif.mem.detach()
        return [parameter.grad for parameter in net.parameters()]

    def online(self, steps, online, length=CHUNK):
        online.net.zero_grad()
        online.reset()
        for chunk in self.chunks(steps, length):
            spk = online(chunk, single=False)[0]
            loss = self.loss(spk)
            for readout in online.readouts:
                loss = loss + readout.square().sum() / readout[0].numel()
            loss.backward()
        return [parameter.grad for parameter in online.net.parameters()]

    def spikingjelly(self, steps, net):
        net.zero_grad()
        peers.spikingjelly("functional").reset_net(net)
        for chunk in self.chunks(steps, CHUNK):
            for x in chunk:
                out = net(x)
                self.loss(out[0] if isinstance(out, list) else out).backward()
        return [parameter.grad for parameter in net.parameters()]

    def spikingjelly_network(self, node):
        neuron_class, atan = getattr(peers.spikingjelly("neuron"), node), peers.spikingjelly("surrogate").ATan
        options = {"tau": 1 / (1 - self.settings.beta), "decay_input": False, "v_reset": None}
        sequential = peers.spikingjelly("layer").OTTTSequential if node.startswith("OTTT") else nn.Sequential
        return sequential(*self.layers(lambda: neuron_class(surrogate_function=atan(), **options)))

    def by_steps(self, steps, traces, input_trace=True, at_once=False):
        """Return SLTT's gradients, or with ``traces`` OTTT's, step by step in plain PyTorch.

        With ``at_once`` the reset is in the step of the spike. A product has two gradients: of the layer below by its
        spikes, and of the weights by their trace.
        """
        weights = [linear.weight for linear in linears(self.weights)]
        beta, spike_grad = self.settings.beta, snntorch.surrogate.atan()
        mems = [0.0] * len(weights)
        sums = [0.0] * len(weights)
        for chunk in self.chunks(steps, CHUNK):
            loss = 0.0
            for spk in chunk:
                for layer, weight in enumerate(weights):
                    has_trace = traces and (layer > 0 or input_trace)
                    sums[layer] = (beta * sums[layer] if has_trace else 0.0) + spk.detach()
                    weighted_trace = functional.linear(sums[layer], weight)
                    current = functional.linear(spk, weight.detach()) + (weighted_trace - weighted_trace.detach())
                    before = mems[layer]
                    reset = (before > 1).float() if isinstance(before, torch.Tensor) and not at_once else 0.0
                    mem = beta * before + current - reset
                    spk = spike_grad(mem - 1)
                    mems[layer] = (mem - spk if at_once else mem).detach()
                loss = loss + self.loss(spk)
            loss.backward()
        return [weight.grad for weight in weights]


# A single entry: the next point of a sweep replaces the last one.
problem_of = functools.lru_cache(maxsize=1)(Problem)


def workload(settings, run, expected, against, steps=CHECKED_STEPS, compared=slice(None)):
    """Return the workload of ``run``, whose gradients are compared on the beginning of the stream."""
    steps = min(steps, settings.steps)

    def check():
        return check_close(run(steps)[compared], expected(steps)[compared], TOLERANCE, against)

    return Workload(lambda: run(settings.steps), check)


def _through_time(settings):
    problem = problem_of(settings)
    neurons = INPUTS + 2 * settings.neurons + OUTPUTS
    needed, available = KEPT_BYTES * settings.steps * settings.batch_size * neurons, available_memory()
    if available is not None and needed > available / 2:
        raise Unavailable(f"keeps {needed / 1e9:.1f} GB at least, of which {available / 1e9:.1f} GB are available")
    net = problem.network()
    return workload(settings, lambda steps: problem.through_time(steps, net), problem.by_snntorch, "snnTorch")


def _truncated(settings):
    problem = problem_of(settings)
    net, full_net = problem.network(init_hidden=True), problem.network()
    # The gradients of a single chunk are those of the whole stream.
    return workload(
        settings,
        lambda steps: problem.truncated(steps, net),
        lambda steps: problem.through_time(steps, full_net),
        "BPTT",
        CHUNK,
    )


def _by_rule(settings, rule, options, length=CHUNK):
    problem = problem_of(settings)
    online = snnipu.Online(problem.network(), rule=rule, **options)

    def run(steps):
        return problem.online(steps, online, length)

    if rule in ("sltt", "ottt"):
        return workload(settings, run, lambda steps: problem.by_steps(steps, rule == "ottt"), "explicit steps")
    if rule == "decolle":
        return workload(settings, run, lambda steps: problem.online(steps, online, 1), "chunks of one step")
    # The last layer's gradients are those of backpropagation: rules only differ in the layers below.
    last = slice(-1, None)
    return workload(
        settings, run, lambda steps: problem.through_time(steps, online.net), "BPTT, last layer", compared=last
    )


def _spikingjelly(settings, node):
    problem = problem_of(settings)
    net = problem.spikingjelly_network(node)

    def expected(steps):
        return problem.by_steps(steps, traces=node.startswith("OTTT"), input_trace=False, at_once=True)

    return workload(settings, lambda steps: problem.spikingjelly(steps, net), expected, "its own rule")


def _braintrace(settings, rule, longest):
    if settings.steps > longest:
        raise Unavailable(f"takes minutes for {settings.steps} steps; it is run for {longest} at most")
    problem = problem_of(settings)
    options = {"decay_or_rank": settings.beta} if rule == "pp_prop" else {}
    stream = braintrace.stream(rule, problem.weights, settings.beta, problem.upstream, **options)
    if rule == "D_RTRL":
        return workload(
            settings,
            lambda steps: stream(problem.chunks(steps, CHUNK))[0],
            lambda steps: problem.by_steps(steps, traces=True),
            "explicit steps, as ottt",
        )

    def losses(steps):
        spk = problem.network()(problem.stream(steps))[0]
        return [(spk * problem.upstream).sum((1, 2))]

    # Its rule is coarser than ours, so only forward outputs are compared.
    return workload(settings, lambda steps: list(stream(problem.chunks(steps, CHUNK))[1:]), losses, "BPTT, losses")


RULES = (
    ("sltt", {}, "each step by itself"),
    ("ottt", {}, "a trace of each input"),
    ("eprop", {"low_pass": False}, "the readout's error at each step; with its low-pass it takes four times as long"),
    ("snap1", {}, "every state's own derivative"),
    (
        "decolle",
        {"readouts": OUTPUTS},
        "local readouts of each layer, and their squares a part of the loss",
    ),
)


LONG = f"in chunks of {LONG_CHUNK} steps: less to do around each, and more memory"
# Name, rule, the longest stream that is run, description.
BRAINTRACE = (
    ("pp-prop", "pp_prop", 10_000, "traces of inputs and of outputs, an approximation"),
    ("D-RTRL", "D_RTRL", 200, "a trace for each weight and sample; here the gradients of ottt"),
)


def contenders(settings):
    def row(name, label, make, *more, note):
        return Contender(name, label, functools.partial(make, settings, *more), note=note)

    return [
        row("bptt", "BPTT, MultiStep", _through_time, note="the whole stream at once"),
        row(
            "truncated",
            f"BPTT in chunks of {CHUNK}",
            _truncated,
            note="states carried on, and gradients cut between chunks",
        ),
        *(row(rule, f"Online, {rule}", _by_rule, rule, options, note=note) for rule, options, note in RULES),
        *(
            row(f"{rule}-{LONG_CHUNK}", f"Online, {rule}, by {LONG_CHUNK}", _by_rule, rule, {}, LONG_CHUNK, note=LONG)
            for rule in ("sltt", "ottt")
        ),
        *(
            Contender(
                f"braintrace-{name}",
                f"BrainTrace, {name}",
                functools.partial(_braintrace, settings, rule, longest),
                "braintrace",
                f"compiled by JAX, which takes all cores it may; {note}",
                torch_memory=False,
            )
            for name, rule, longest, note in BRAINTRACE
        ),
        *(
            Contender(
                f"spikingjelly-{node[:4].lower()}",
                f"SpikingJelly, {node[:4]}",
                functools.partial(_spikingjelly, settings, node),
                "spikingjelly",
                f"{node}, step by step; it resets in the step of the spike",
            )
            for node in ("SLTTLIFNode", "OTTTLIFNode")
        ),
    ]


CASE = Case(
    summary="online learning beside backpropagation through time, against the length of the stream: time and memory",
    work=(
        f"A stream of T steps, {100 * ACTIVITY:g} % of the input active, its output spikes and the gradients of all "
        f"weights, in chunks of {CHUNK} steps; states and traces go on from chunk to chunk."
    ),
    title=lambda settings: (
        f"Learning online, {INPUTS}-{settings.neurons}-{settings.neurons}-{OUTPUTS}: T={settings.steps} × "
        f"B={settings.batch_size}"
    ),
    contenders=contenders,
    sizes={"steps": (50, 200, 1000, 5000), "batch_size": 32, "neurons": 512, "beta": 0.9},
    quick={"steps": (10, 20)},
    axes=("steps",),
    tables=("milliseconds", "peak_mebibytes"),
    charts=("milliseconds", "peak_mebibytes"),
    reference="bptt",
    repeats=5,
    slow_seconds=0.5,
    slow_rounds=3,
    devices=("cpu",),
    memory_apart=True,
    measured=lambda settings: problem_of(settings).measured(),
    check=f"Gradients of the stream's beginning within {TOLERANCE:.0e} of the named, relative to the largest.",
)
