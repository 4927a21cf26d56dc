"""The rules of online learning: what each keeps of a network's derivatives."""

from typing import Dict, NamedTuple


class Rule(NamedTuple):
    """What a rule keeps of the derivatives of states by earlier states, and what it passes to the layer below."""

    name: str
    # A neuron's states by its earlier ones: traces.
    history: bool
    # In them: the reset's derivative, and that of a recurrent neuron's spikes by which it reaches itself.
    keeps_reset: bool
    keeps_loop: bool


RULES: Dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("sltt", history=False, keeps_reset=True, keeps_loop=False),
        Rule("ottt", history=True, keeps_reset=False, keeps_loop=False),
        Rule("snap1", history=True, keeps_reset=True, keeps_loop=True),
    )
}
