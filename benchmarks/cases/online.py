"""Online learning beside backpropagation through time: a stream of T steps, forward and all gradients, in chunks."""

import functools
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import snntorch
import torch
from torch import nn
from torch.nn import functional

import snnipu
from benchmarks import braintrace, peers
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.checks import Check, relative_error
from benchmarks.memory import available_memory
from benchmarks.options import Option, comma_separated
from benchmarks.sparse_problem import on_grid

SUMMARY = "online learning beside backpropagation through time, against the length of the stream: time and memory"
DTYPES = (torch.float32,)
DEVICES = ("cpu",)
FULL = {"steps": 200, "batch_size": 32, "neurons": 512, "repeats": 5, "min_seconds": 0.0}
QUICK = {"steps": 20, "batch_size": 2, "neurons": 16, "repeats": 2, "min_seconds": 0.0}
STREAMS = (50, 200, 1000, 5000)
QUICK_STREAMS = (10, 20)
INPUTS, OUTPUTS, CHUNK, LONG_CHUNK = 700, 20, 50, 200
ACTIVITY = 0.02
# So much of a stream is drawn; it comes again and again.
DRAWN = 4
TOLERANCE = 1e-4
CHECKED_STEPS = 3 * CHUNK // 2
SLOW_SECONDS, SLOW_ROUNDS = 0.5, 3
# Bytes of a sample and step that backpropagation keeps of a neuron, or of an input: at least.
KEPT_BYTES = 8

Tensors = List[torch.Tensor]


def _parse_streams(text: str) -> List[int]:
    values = comma_separated(text, int, "whole numbers")
    if min(values, default=1) < 1:
        raise ValueError(f"must be 1 or more, but has {min(values)}")
    return values


OPTIONS = (
    Option(
        "streams",
        f"lengths of the stream in steps; default: {','.join(map(str, STREAMS))}",
        _parse_streams,
        STREAMS,
        QUICK_STREAMS,
        metavar="LIST",
        replaces=("steps",),
    ),
)


class Problem:
    """The same stream, weights and upstream gradient of the output spikes for every contender."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        generator = torch.Generator().manual_seed(settings.seed)
        batch, sizes = settings.batch_size, [INPUTS, settings.neurons, settings.neurons, OUTPUTS]
        drawn = min(settings.steps, DRAWN * CHUNK)
        self.x = (torch.rand(drawn, batch, INPUTS, generator=generator) < ACTIVITY).float()
        scale = (3.0, 8.0, 8.0)
        # On a grid: the spikes are then the same in whatever order a product is added up.
        self.weights = [
            on_grid(by * (2 * torch.rand(n, m, generator=generator) - 1) / m**0.5)
            for by, m, n in zip(scale, sizes, sizes[1:])
        ]
        self.upstream = torch.randn(batch, OUTPUTS, generator=generator)

    def chunks(self, steps: int, length: int) -> Iterator[torch.Tensor]:
        """The stream of ``steps``, in chunks."""
        done = 0
        while done < steps:
            start = done % len(self.x)
            stop = min(start + length, len(self.x), start + steps - done)
            yield self.x[start:stop]
            done += stop - start

    def linears(self) -> List[nn.Linear]:
        made = [nn.Linear(weight.shape[1], weight.shape[0], bias=False) for weight in self.weights]
        with torch.no_grad():
            for linear, weight in zip(made, self.weights):
                linear.weight.copy_(weight)
        return made

    def network(self, init_hidden: bool = False) -> snnipu.MultiStep:
        modules: List[nn.Module] = []
        for linear in self.linears():
            modules += [linear, snnipu.Leaky(beta=self.settings.beta, init_hidden=init_hidden)]
        return snnipu.MultiStep(*modules)

    def measured(self) -> Dict[str, Any]:
        """Spikes per neuron and step of each layer."""
        out, found = self.x, []
        with torch.no_grad():
            for module in self.network():
                out = module(out) if isinstance(module, nn.Linear) else module.spikes(out)  # type: ignore[operator]
                if not isinstance(module, nn.Linear):
                    found.append(float(out.mean()))
        return {"activity": found}

    def loss(self, spk: torch.Tensor) -> torch.Tensor:
        """Of output spikes ``[T, B, outputs]``: linear, so that it is the same in any division."""
        return (spk * self.upstream).sum()

    def through_time(self, steps: int, net: nn.Module) -> Tensors:
        """The whole stream at once."""
        spk, _ = net(torch.cat(list(self.chunks(steps, CHUNK))))
        return list(torch.autograd.grad(self.loss(spk), list(net.parameters())))

    def truncated(self, steps: int, net: nn.Module) -> Tensors:
        """Chunk by chunk, by backpropagation through each, its states carried on: what people do to save memory."""
        own = list(net.parameters())
        lifs: List[Any] = [module for module in net.modules() if isinstance(module, snnipu.Leaky)]
        for lif in lifs:
            lif.reset_mem()
        total = [torch.zeros_like(parameter) for parameter in own]
        for chunk in self.chunks(steps, CHUNK):
            for sum_, grad in zip(total, torch.autograd.grad(self.loss(net(chunk)[0]), own)):
                sum_ += grad
            for lif in lifs:
                lif.mem = lif.mem.detach()
        return total

    def online(self, steps: int, online: snnipu.Online, length: int = CHUNK) -> Tensors:
        own = list(online.net.parameters())
        for parameter in own:
            parameter.grad = None
        online.reset()
        for chunk in self.chunks(steps, length):
            spk = online(chunk, single=False)[0]
            loss = self.loss(spk)
            for readout in online.readouts:
                loss = loss + readout.square().sum() / readout[0].numel()
            loss.backward()
        return [parameter.grad for parameter in own]  # type: ignore[misc]

    def spikingjelly(self, steps: int, net: nn.Module) -> Tensors:
        functional_, own = peers.spikingjelly("functional"), list(net.parameters())
        for parameter in own:
            parameter.grad = None
        functional_.reset_net(net)
        for chunk in self.chunks(steps, CHUNK):
            for x in chunk:
                out = net(x)
                self.loss(out[0] if isinstance(out, list) else out).backward()
        return [parameter.grad for parameter in own]  # type: ignore[misc]

    def spikingjelly_network(self, node: str) -> nn.Module:
        kind, atan = getattr(peers.spikingjelly("neuron"), node), peers.spikingjelly("surrogate").ATan
        modules: List[nn.Module] = []
        for linear in self.linears():
            tau = 1 / (1 - self.settings.beta)
            modules += [linear, kind(tau=tau, decay_input=False, v_reset=None, surrogate_function=atan())]
        sequential: Any = peers.spikingjelly("layer").OTTTSequential if node.startswith("OTTT") else nn.Sequential
        return sequential(*modules)  # type: ignore[no-any-return]

    def by_steps(self, steps: int, traces: bool, input_trace: bool = True, at_once: bool = False) -> Tensors:
        """SLTT, or with ``traces`` OTTT, step by step in plain PyTorch; ``at_once``: the reset is in the spike's step.

        Each product has its value and the gradient of the layer below by the spikes, that of weights by their trace.
        """
        own = [linear.weight for linear in self.linears()]
        beta, spike_grad = self.settings.beta, snntorch.surrogate.atan()
        mems: List[Any] = [0.0] * len(own)
        sums: List[Any] = [0.0] * len(own)
        for chunk in self.chunks(steps, CHUNK):
            loss: Any = 0.0
            for spk in chunk:
                for layer, weight in enumerate(own):
                    keeps = traces and (layer > 0 or input_trace)
                    sums[layer] = (beta * sums[layer] if keeps else 0.0) + spk.detach()
                    of_weight = functional.linear(sums[layer], weight)
                    current = functional.linear(spk, weight.detach()) + (of_weight - of_weight.detach())
                    before = mems[layer]
                    reset = (before > 1).float() if isinstance(before, torch.Tensor) and not at_once else 0.0
                    mem = beta * before + current - reset
                    spk = spike_grad(mem - 1)
                    mems[layer] = (mem - spk if at_once else mem).detach()
                loss = loss + self.loss(spk)
            loss.backward()
        return [weight.grad for weight in own]  # type: ignore[misc]


def _compared(made: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], against: str) -> Check:
    error = max(relative_error(one, other) for one, other in zip(made, expected))
    return Check(
        error <= TOLERANCE,
        against,
        f"relative error of the gradients {error:.1e} (allowed: {TOLERANCE:.0e})",
        {"error": error},
    )


# One at a time: the next point of a sweep takes the place of the last.
_problem = functools.lru_cache(maxsize=1)(Problem)


def _of_time(settings: Settings) -> Workload:
    problem = _problem(settings)
    neurons = INPUTS + 2 * settings.neurons + OUTPUTS
    needed, available = KEPT_BYTES * settings.steps * settings.batch_size * neurons, available_memory()
    if available is not None and needed > available / 2:
        raise peers.Unavailable(
            f"keeps {needed / 1e9:.1f} GB at least, of which {available / 1e9:.1f} GB are available"
        )
    net = problem.network()

    def check() -> Check:
        # Of a loop over snnTorch's neurons, on the beginning of the stream.
        steps = min(CHECKED_STEPS, settings.steps)
        linears, lifs = problem.linears(), [snntorch.Leaky(beta=settings.beta) for _ in problem.weights]
        mems, spk_rec = [lif.reset_mem() for lif in lifs], []
        for chunk in problem.chunks(steps, CHUNK):
            for spk in chunk:
                for number, (linear, lif) in enumerate(zip(linears, lifs)):
                    spk, mems[number] = lif(linear(spk), mems[number])
                spk_rec.append(spk)
        loss = problem.loss(torch.stack(spk_rec))
        expected = torch.autograd.grad(loss, [linear.weight for linear in linears])
        return _compared(problem.through_time(steps, net), expected, "snnTorch")

    return Workload(lambda: problem.through_time(settings.steps, net), check)


def _truncated(settings: Settings) -> Workload:
    problem = _problem(settings)
    net = problem.network(init_hidden=True)
    steps = min(CHUNK, settings.steps)

    def check() -> Check:  # of one chunk it is the whole
        return _compared(problem.truncated(steps, net), problem.through_time(steps, problem.network()), "BPTT")

    return Workload(lambda: problem.truncated(settings.steps, net), check)


def _by_rule(settings: Settings, rule: str, options: Dict[str, Any], length: int = CHUNK) -> Workload:
    problem = _problem(settings)
    online = snnipu.Online(problem.network(), rule=rule, **options)
    steps = min(CHECKED_STEPS, settings.steps)

    def check() -> Check:
        made = problem.online(steps, online, length)
        if rule in ("sltt", "ottt"):
            return _compared(made, problem.by_steps(steps, traces=rule == "ottt"), "explicit steps")
        if rule == "decolle":
            return _compared(made, problem.online(steps, online, length=1), "chunks of one step")
        # The last layer's gradient is that of backpropagation: what a rule leaves out is below.
        return _compared(made[-1:], problem.through_time(steps, online.net)[-1:], "BPTT, last layer")

    return Workload(lambda: problem.online(settings.steps, online, length), check)


def _spikingjelly(settings: Settings, node: str) -> Workload:
    problem = _problem(settings)
    net = problem.spikingjelly_network(node)
    steps = min(CHECKED_STEPS, settings.steps)

    def check() -> Check:
        expected = problem.by_steps(steps, traces=node.startswith("OTTT"), input_trace=False, at_once=True)
        return _compared(problem.spikingjelly(steps, net), expected, "its own rule")

    return Workload(lambda: problem.spikingjelly(settings.steps, net), check)


def _braintrace(settings: Settings, rule: str, most: int) -> Workload:
    if settings.steps > most:
        raise peers.Unavailable(f"takes minutes for {settings.steps} steps; it is run for {most} at most")
    problem = _problem(settings)
    options = {"decay_or_rank": settings.beta} if rule == "pp_prop" else {}
    made = braintrace.stream(rule, problem.weights, settings.beta, problem.upstream, **options)
    steps = min(CHECKED_STEPS, settings.steps)

    def check() -> Check:
        grads, losses = made(problem.chunks(steps, CHUNK))
        if rule == "D_RTRL":
            return _compared(grads, problem.by_steps(steps, traces=True), "explicit steps, as ottt")
        # Its rule leaves more out than any here: what can be compared is what the network makes of the stream.
        spk = problem.network()(torch.cat(list(problem.chunks(steps, CHUNK))))[0]
        return _compared([losses], [(spk * problem.upstream).sum((1, 2))], "BPTT, losses")

    return Workload(lambda: made(problem.chunks(settings.steps, CHUNK))[0], check)


RULES: Sequence[Tuple[str, Dict[str, Any], str]] = (
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


_LONG = f"in chunks of {LONG_CHUNK} steps: less to do around each, and more memory"
# Name, rule, the longest stream that is run, what it is.
_BRAINTRACE: Sequence[Tuple[str, str, int, str]] = (
    ("pp-prop", "pp_prop", 10_000, "traces of inputs and of outputs, an approximation"),
    ("D-RTRL", "D_RTRL", 200, "a trace for each weight and sample; here the gradients of ottt"),
)


def build(settings: Settings) -> Case:
    """One stream of ``settings.steps``."""

    def own(name: str, label: str, make: Callable[..., Workload], *more: Any, note: str, ratio: str = "") -> Contender:
        return Contender(name, label, functools.partial(make, settings, *more), ratio_label=ratio, note=note)

    contenders = [
        own("bptt", "BPTT, MultiStep", _of_time, note="the whole stream at once", ratio="BPTT"),
        own(
            "truncated",
            f"BPTT in chunks of {CHUNK}",
            _truncated,
            note="states carried on, and gradients cut between chunks",
            ratio="BPTT in chunks",
        ),
        *(own(rule, f"Online, {rule}", _by_rule, rule, options, note=note) for rule, options, note in RULES),
        *(
            own(f"{rule}-{LONG_CHUNK}", f"Online, {rule}, by {LONG_CHUNK}", _by_rule, rule, {}, LONG_CHUNK, note=_LONG)
            for rule in ("sltt", "ottt")
        ),
        *(
            Contender(
                f"braintrace-{name}",
                f"BrainTrace, {name}",
                functools.partial(_braintrace, settings, rule, most),
                peer="braintrace",
                torch_memory=False,
                note=f"compiled by JAX, which takes all cores it may; {note}",
            )
            for name, rule, most, note in _BRAINTRACE
        ),
        *(
            Contender(
                f"spikingjelly-{node[:4].lower()}",
                f"SpikingJelly, {node[:4]}",
                functools.partial(_spikingjelly, settings, node),
                peer="spikingjelly",
                note=f"{node}, step by step; it resets in the step of the spike",
            )
            for node in ("SLTTLIFNode", "OTTTLIFNode")
        ),
    ]
    sizes = "-".join(map(str, (INPUTS, settings.neurons, settings.neurons, OUTPUTS)))
    return Case(
        name="online",
        title=f"Learning online, {sizes}: T={settings.steps} × B={settings.batch_size}",
        caption=_CAPTION,
        contenders=contenders,
        memory_reference="bptt",
        memory_label="BPTT",
        parameters={
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "neurons": settings.neurons,
            "chunk": CHUNK,
            "activity": ACTIVITY,
        },
        measured=lambda: _problem(settings).measured(),
        slow_seconds=SLOW_SECONDS,
        slow_rounds=SLOW_ROUNDS,
        check_meaning=(
            f"check: gradients of the stream's beginning within {TOLERANCE:.0e} of the named, relative to the largest."
        ),
    )


_CAPTION = (
    f"The work: a stream of T steps, {100 * ACTIVITY:g} % of the input active, its output spikes and the gradients of "
    f"all weights, in chunks of {CHUNK} steps; states and traces go on from chunk to chunk."
)


def sweep(settings: Settings, streams: Sequence[int]) -> Sweep:
    """The points against the length of the stream."""
    lengths = sorted(set(streams))
    tables: Any = ("time", "memory")
    headline = settings.steps if settings.steps in lengths else lengths[0]
    return Sweep(
        name="online",
        title=f"Learning online: B={settings.batch_size}, chunks of {CHUNK}",
        caption=_CAPTION,
        points=[replace(settings, steps=length) for length in lengths],
        axes=[Axis("steps", "steps of the stream", lengths, {}, tables=tables, panels=tables)],
        reference=None,
        headline={"steps": headline},
        memory_apart=True,
    )
