"""The rules of online learning and their options."""

from typing import Any, Callable, Dict, Mapping, NamedTuple, Tuple

FEEDBACKS = ("symmetric", "random", "adaptive")


class Rule(NamedTuple):
    """The parts of the derivatives that a rule keeps, and its options."""

    name: str
    # True if a neuron's states depend on its earlier states: the rule has traces.
    history: bool
    # Parts of the traces: the derivative of the reset, and a recurrent neuron's effect on itself by its spikes.
    keeps_reset: bool = True
    keeps_loop: bool = False
    options: Mapping[str, Any] = {}  # names and defaults; None: required

    def with_options(self, chosen: Mapping[str, Any]) -> "Rule":
        """Return the rule with the options of the caller.

        Raises:
            TypeError: an unknown option.
            ValueError: an option of a wrong value.
        """
        unknown = [name for name in chosen if name not in self.options]
        if unknown:
            choices = f"its options are {', '.join(self.options)}" if self.options else "it has none"
            raise TypeError(f'rule "{self.name}" has no option {unknown[0]!r}: {choices}')
        options = {**self.options, **chosen}
        for name, value in options.items():
            expected, accepts = OPTIONS[name]
            if not accepts(value):
                raise ValueError(f'{name} of rule "{self.name}" must be {expected}, got {value!r}')
        return self._replace(options=options)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


# The values of each option: their description in errors, and a check.
OPTIONS: Dict[str, Tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("input_trace", "bias_trace", "low_pass"), ("True or False", _is_bool)),
    "feedback": (f"one of {', '.join(map(repr, FEEDBACKS))}", FEEDBACKS.__contains__),
    "readouts": ("the number of outputs of each layer's local readout", _is_count),
}
RULES: Dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("sltt", history=False),
        Rule("ottt", history=True, keeps_reset=False, options={"input_trace": True, "bias_trace": True}),
        Rule("eprop", history=True, options={"feedback": "symmetric", "low_pass": True}),
        Rule("decolle", history=True, keeps_reset=False, options={"readouts": None}),
        Rule("snap1", history=True, keeps_loop=True),
    )
}
