"""Every fused neuron of snnTorch over a sequence, beside its loop and the libraries that have such a neuron."""

import functools
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import snntorch
import torch

import snnipu
from benchmarks import peers
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.cases import lif, memory
from benchmarks.checks import Check, tolerance_for
from benchmarks.options import Option, names_of

SUMMARY = "each of snnTorch's neurons alone over a sequence, forward + backward: share of a copy's speed"
DTYPES = (torch.float32,)
# Bytes a neuron reads and writes in a step at least where it returns the spikes alone: forward x and the spikes,
# backward x, the gradient of the spikes and that of x. A state that is returned is written, too.
SPIKES_BYTES, STATE_BYTES = 20, 4
_SLOW_SECONDS = 0.25

Tensors = Tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Kind:
    """A neuron of the table.

    Attributes:
        name: of the class, in snnTorch and in snnipu.
        keywords: but for ``beta``, which is the settings'.
        states: that a step takes; the spikes of recurrent neurons are one.
        product: whether its steps multiply by a matrix, of which a copy is no measure.
    """

    name: str
    states: int
    keywords: Mapping[str, Any] = field(default_factory=dict)
    product: bool = False

    @property
    def spikes_are_state(self) -> bool:
        return self.name.startswith("R")

    @property
    def returned(self) -> int:
        """States that a step returns beside the spikes."""
        return self.states - self.spikes_are_state


KINDS: Dict[str, Kind] = {
    "Leaky": Kind("Leaky", 1),
    "Lapicque": Kind("Lapicque", 1, {"threshold": 0.2}),
    "DeltaLeaky": Kind("DeltaLeaky", 2),
    "Synaptic": Kind("Synaptic", 2, {"alpha": 0.8}),
    "Alpha": Kind("Alpha", 3, {"alpha": 0.95, "threshold": 0.3}),
    "RLeaky": Kind("RLeaky", 2, {"all_to_all": False, "V": 0.5}),
    "RSynaptic": Kind("RSynaptic", 3, {"all_to_all": False, "V": 0.5, "alpha": 0.8}),
    "RLeaky all-to-all": Kind("RLeaky", 2, product=True),
    "RSynaptic all-to-all": Kind("RSynaptic", 3, {"alpha": 0.8}, product=True),
}


OPTIONS = (
    Option(
        "kinds",
        f"which neurons, comma-separated; default: all of {', '.join(KINDS)}",
        names_of(list(KINDS)),
        list(KINDS),
        ["Leaky", "Synaptic", "RLeaky all-to-all"],
        metavar="LIST",
    ),
)


def _loop(kind: Kind, layer: Any, x: torch.Tensor) -> torch.Tensor:
    """The spikes of all steps, each by a call."""
    zeros = torch.zeros_like(x[0])
    states: Any = ((zeros, zeros),) if kind.name == "DeltaLeaky" else (zeros,) * kind.states
    spk_rec = []
    for current in x.unbind():
        out = layer(current, *states)
        states = out if kind.spikes_are_state else out[1:]
        spk_rec.append(out[0])
    return torch.stack(spk_rec)


class Work(memory.Work):
    """The work of ``lif`` with another neuron; of those that have parameters, their gradients are computed, too."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.kind = KINDS[settings.neuron]
        if self.kind.product:  # neurons of a sample depend on each other
            self.parts = [(0, settings.batch_size * settings.neurons)]

    def layer(self, library: Any) -> Any:
        """The neuron of snnTorch or snnipu; both have the same weights."""
        keywords = dict(self.kind.keywords)
        if self.kind.product:
            keywords["linear_features"] = self.settings.neurons
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return getattr(library, self.kind.name)(beta=self.beta, **keywords).to(self.device)

    def _run(self, layer: Any, forward: lif.Forward, x: torch.Tensor, grad_spk: torch.Tensor) -> Tensors:
        spk = forward(x)
        return (spk, *torch.autograd.grad(spk, [x, *layer.parameters()], grad_spk))

    def _run_reference(self, start: int, stop: int) -> lif.SpikesAndGradient:
        x, grad_spk = self._columns(self.x, start, stop), self._columns(self.grad_spk, start, stop)
        if self.kind.product:
            x, grad_spk = x.reshape(self.shape), grad_spk.reshape(self.shape)
        layer = self.layer(snntorch)
        spk, grad_x, *_ = self._run(
            layer, functools.partial(_loop, self.kind, layer), x.clone().requires_grad_(), grad_spk
        )
        return spk.flatten(1), grad_x.flatten(1)

    def _workload(self, layer: Any, forward: lif.Forward) -> Workload:
        step = functools.partial(self._run, layer, forward, self.x, self.grad_spk)

        def check() -> Check:
            results = step()[:2]
            return self._check(results, self._reference, tolerance_for(self.dtype, self.device), "snnTorch")  # type: ignore[arg-type]

        return Workload(step, check)

    def sequence(self) -> Workload:
        layer = self.layer(snnipu)
        return self._workload(layer, lambda x: layer.sequence(x)[0])

    def spikes(self) -> Workload:
        layer = self.layer(snnipu)
        return self._workload(layer, layer.spikes)

    def loop_unbind(self) -> Workload:
        layer = self.layer(snntorch)
        return self._workload(layer, functools.partial(_loop, self.kind, layer))

    def norse_synaptic(self) -> Workload:
        """norse's LIF neuron with a synaptic current."""
        alpha = self.kind.keywords["alpha"]
        lift = peers.norse_lift(peers.norse_synaptic(alpha, self.beta, self.dtype))
        # As in `norse`: its membrane takes the current times 1 - beta.
        scaled = (self.x.detach() / (1 - self.beta)).requires_grad_()
        step = functools.partial(lif._run, lambda data: lift(data)[0], scaled, self.grad_spk)
        rule = peers.norse_synaptic_rule(alpha, self.beta)

        def expected(start: int, stop: int) -> lif.SpikesAndGradient:
            x = self._columns(scaled, start, stop).clone().requires_grad_()
            grad_spk = self._columns(self.grad_spk, start, stop)

            def forward(data: torch.Tensor) -> torch.Tensor:
                states = (torch.zeros_like(data[0]),) * 2
                spk_rec = []
                for current in data.unbind():
                    spk, *states = rule(current, *states)  # type: ignore[assignment]
                    spk_rec.append(spk)
                return torch.stack(spk_rec)

            return lif._run(forward, x, grad_spk)

        def check() -> Check:
            tolerance = tolerance_for(self.dtype, self.device, same_operations=False)
            return self._check(step(), expected, tolerance, "its own rule")

        return Workload(step, check)


# One at a time: the next neuron takes the place of the last.
_work = functools.lru_cache(maxsize=1)(Work)


def build(settings: Settings) -> Case:
    """The table of one neuron, ``settings.neuron``. Input and upstream gradient are made with the first contender."""
    kind = KINDS[settings.neuron]
    all_bytes = SPIKES_BYTES + STATE_BYTES * kind.returned
    floor = "" if kind.product else "copy"

    def of(make: Callable[..., Workload]) -> Callable[..., Workload]:
        return lambda **more: make(_work(settings), **more)

    contenders: List[Contender] = [
        Contender("snnipu", "snnipu sequence", of(Work.sequence), ratio_label="snnipu", floor=floor),
        Contender("snnipu-spikes", "snnipu spikes", of(Work.spikes), floor=floor and "copy-spikes"),
        Contender("snntorch-unbind", "snnTorch loop", of(Work.loop_unbind), peer="snntorch", floor=floor),
    ]
    if settings.neuron == "Leaky":
        more = peers.multi_step_contenders(of(lif.Work.spikingjelly), of(lif.Work.norse), settings.device)
        # The lines of a sweep have one name for all neurons.
        labels = {"spikingjelly": "SpikingJelly", "norse": "norse"}
        contenders += [
            replace(c, label=labels.get(c.name, c.label), note=f"{c.label}: {c.note}", floor=floor) for c in more
        ]
    if settings.neuron == "Synaptic":
        contenders.append(
            Contender(
                "norse",
                "norse",
                of(Work.norse_synaptic),
                peer="norse",
                note="LIFCell, Lift: resets to zero in the step of the spike, with gradient through the reset",
                floor=floor,
            )
        )
    if floor:
        contenders += [
            Contender(
                "copy",
                "copy, all states",
                lambda: _work(settings).copy(all_bytes),
                peer="copy",
                note=f"of {all_bytes} bytes a neuron and step: forward reads x and writes spikes and "
                f"{kind.returned} state{'s' * (kind.returned > 1)}, "
                "backward reads x and the gradient of the spikes and writes that of x",
                floor="copy",
            ),
            Contender(
                "copy-spikes",
                "copy, spikes alone",
                lambda: _work(settings).copy(SPIKES_BYTES),
                peer="copy",
                note=f"of {SPIKES_BYTES} bytes: the same where the spikes alone are returned",
                floor="copy-spikes",
            ),
        ]
    options = ", ".join(f"{key}={value}" for key, value in {"beta": settings.beta, **kind.keywords}.items())
    return Case(
        name="neurons",
        title=f"{settings.neuron} alone, forward + backward: "
        f"T={settings.steps} × B={settings.batch_size} × N={settings.neurons}",
        caption=f"{_CAPTION} {kind.name}({options}), else snnTorch's defaults.",
        contenders=contenders,
        memory_reference="snntorch-unbind",
        parameters={
            "neuron": settings.neuron,
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "neurons": settings.neurons,
        },
        slow_seconds=_SLOW_SECONDS,
        show_faults=settings.device.type == "cpu",
    )


_CAPTION = (
    "The work: from x [T, B, N], which requires a gradient, and an upstream gradient of the stacked spikes, compute "
    "the spikes of all steps and the gradients of x and of the neuron's learnable parameters."
)


def sweep(settings: Settings, kinds: Sequence[str]) -> Sweep:
    """A table for each of the neurons ``kinds``, keys of :data:`KINDS`."""
    return Sweep(
        name="neurons",
        title=f"Neurons alone, forward + backward: T={settings.steps} × B={settings.batch_size} × N={settings.neurons}",
        caption=_CAPTION,
        points=[replace(settings, neuron=name) for name in kinds],
        axes=[
            Axis(
                "neuron",
                "neuron",
                list(kinds),
                {},
                tables=("time", "copy_share", "memory"),
                panels=("time", "copy_share"),
            )
        ],
        reference=None,
        headline=None,
    )
