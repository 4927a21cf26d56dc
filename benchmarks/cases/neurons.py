"""Every fused neuron over a sequence, with snnTorch's loop and the libraries that have such a neuron."""

import functools
from typing import Any, Mapping, NamedTuple

import torch

from benchmarks import peers
from benchmarks.case import SIZES, Case, Contender
from benchmarks.cases import memory

# A neuron that returns only spikes must read and write at least x and the spikes forward, and x, the gradient of the
# spikes and that of x backward. A returned state adds these bytes for each element.
STATE_BYTES = 4


class Kind(NamedTuple):
    """A neuron of the table.

    Attributes:
        name: name of the class, in snnTorch and in snnipu.
        states: number of states of a step, including the spikes of recurrent neurons.
        keywords: arguments of the class, except ``beta``, which is a setting.
        product: True if its steps have a matrix product, for which a copy is not a floor.
    """

    name: str
    states: int
    keywords: Mapping[str, Any] = {}
    product: bool = False

    @property
    def spikes_are_state(self):
        return self.name.startswith("R")


KINDS = {
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


class Work(memory.Work):
    """The work of ``lif`` with another neuron, and with the gradients of its parameters."""

    def __init__(self, settings):
        super().__init__(settings)
        self.kind = KINDS[settings.neuron]
        if self.kind.product:  # the neurons of a sample depend on each other
            self.parts = [(0, settings.batch_size * settings.neurons)]

    def neuron(self, library):
        """Return the neuron of snnTorch or snnipu; both have the same weights."""
        keywords = dict(self.kind.keywords)
        if self.kind.product:
            keywords["linear_features"] = self.settings.neurons
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return getattr(library, self.kind.name)(beta=self.beta, **keywords).to(self.device)

    def loop_over(self, neuron, steps):
        zeros = torch.zeros_like(steps[0])
        states = ((zeros, zeros),) if self.kind.name == "DeltaLeaky" else (zeros,) * self.kind.states
        spk_rec = []
        for current in steps:
            out = neuron(current, *states)
            states = out if self.kind.spikes_are_state else out[1:]
            spk_rec.append(out[0])
        return torch.stack(spk_rec)

    def _leaves(self, x, *part):
        leaves = super()._leaves(x, *part)
        if self.kind.product:
            return [leaf.detach().reshape(self.shape).requires_grad_() for leaf in leaves]
        return leaves

    def norse_synaptic(self):
        """Return the workload of norse's LIF neuron with a synaptic current."""
        alpha = self.kind.keywords["alpha"]
        lift = peers.norse_lift(peers.norse_synaptic(alpha, self.beta, self.dtype))
        rule = peers.norse_synaptic_rule(alpha, self.beta)
        return self.follows(rule, lambda x: lift(x)[0], self.scaled_for_norse(), states=2)


# A single entry: the next neuron replaces the last one.
work_of = functools.lru_cache(maxsize=1)(Work)


def contenders(settings):
    """Return the rows; input and upstream gradient are created with the first contender."""
    kind = KINDS[settings.neuron]
    returned = kind.states - kind.spikes_are_state
    all_bytes = memory.SPIKES_BYTES + STATE_BYTES * returned
    floor = "" if kind.product else "copy"

    def of(make, *arguments):
        return lambda: make(work_of(settings), *arguments)

    rows = [
        Contender("snnipu", "snnipu sequence", of(Work.sequence), floor=floor),
        Contender("snnipu-spikes", "snnipu spikes", of(Work.spikes), floor=floor and "copy-spikes"),
        Contender("snntorch-unbind", "snnTorch loop", of(Work.loop_unbind), "snntorch", floor=floor),
    ]
    if settings.neuron == "Leaky":
        rows += peers.multi_step_contenders(of(Work.spikingjelly), of(Work.norse), floor)
    if settings.neuron == "Synaptic":
        note = "resets to zero in the step of the spike, with gradient through the reset"
        rows.append(Contender("norse", "norse LIFCell, Lift", of(Work.norse_synaptic), "norse", note, floor))
    if floor:
        note = (
            f"of {all_bytes} bytes a neuron and step: forward reads x and writes spikes and {returned} states, "
            "backward reads x and the gradient of the spikes and writes that of x"
        )
        rows += [
            Contender("copy", "copy, all states", of(Work.copy, all_bytes), "copy", note, "copy"),
            Contender(
                "copy-spikes",
                "copy, spikes alone",
                of(Work.copy, memory.SPIKES_BYTES),
                "copy",
                f"of {memory.SPIKES_BYTES} bytes: the same where the spikes alone are returned",
                "copy-spikes",
            ),
        ]
    return rows


CASE = Case(
    summary="each of snnTorch's neurons alone over a sequence, forward + backward: share of a copy's speed",
    work=(
        "From x [T, B, N], which requires a gradient, and an upstream gradient of the stacked spikes: the spikes of "
        "all steps and the gradients of x and of the neuron's learnable parameters."
    ),
    title=lambda settings: (
        f"{settings.neuron} alone, forward + backward: T={settings.steps} × B={settings.batch_size} × "
        f"N={settings.neurons}"
    ),
    contenders=contenders,
    sizes={**SIZES, "neuron": tuple(KINDS)},
    quick={"neuron": ("Leaky", "Synaptic", "RLeaky all-to-all")},
    axes=("neuron",),
    tables=("milliseconds", "speed", "of_copy", "peak_mebibytes"),
    charts=("milliseconds", "of_copy"),
    choices={"neuron": list(KINDS)},
    reference="snntorch-unbind",
    repeats=20,
    min_seconds=5.0,
    slow_seconds=0.25,
)
