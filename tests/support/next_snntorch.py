"""Make a copy of the installed snnTorch 1.0.0 that behaves as its next release.

``python next_snntorch.py FOLDER`` writes the copy to ``FOLDER/snntorch``. With that folder first in ``PYTHONPATH`` it
is
imported in place of the installed one. Each change states its effect and the pull request in snnTorch's repository.
The replacements are our own code for the behaviour; no code of the release is in here. A text that is missing raises an
error, as the installed snnTorch then is another version. ``--resets`` adds the open pull request 426, which reworks the
resets of ``Leaky`` and ``RLeaky``.
"""

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import List, NamedTuple, Tuple


class Change(NamedTuple):
    """Replacements in files of snnTorch, ``(file, text, its replacement)``; every occurrence is replaced."""

    does: str
    edits: List[Tuple[str, str, str]]


_SPIKES_OF = ["surrogate.py"]
_SPIKES_OF += [f"_neurons/{name}.py" for name in ("neurons", "leakyparallel", "leakykernel", "leakyunroll")]
_COUNTED = "torch.zeros(tuple([spk_out.size(1)] + [num_classes]))"
_RESET = """    _layer_check(net=net)
    for module in net.modules():
        if isinstance(module, snn.SpikingNeuron) and hasattr(module, "reset_mem"):
            module.reset_mem()
"""

MERGED = [
    Change(
        "Spikes have the dtype of the membrane (432).",
        [(file, "(input_ > 0).float()", "(input_ > 0).type_as(input_)") for file in _SPIKES_OF],
    ),
    Change(
        "The states of spiking LSTMs start in the dtype of the input (432).",
        [
            (
                f"_neurons/{file}.py",
                f"self.{state} = torch.zeros(correct_shape, device=self.{state}.device)",
                f"self.{state} = input_.new_zeros(correct_shape, device=self.{state}.device)",
            )
            for file in ("slstm", "sconv2dlstm")
            for state in ("syn", "mem")
        ],
    ),
    Change(
        "utils.reset(net) resets the neurons of that network alone (449), at any depth (414).",
        [
            ("utils.py", "    _layer_check(net=net)\n\n    _layer_reset()\n", _RESET),
            ("utils.py", "list(net._modules.values())[idx]", "list(net.modules())[idx]"),
            ("utils.py", "range(len(list(net._modules.values())))", "range(len(list(net.modules())))"),
        ],
    ),
    Change(
        "The surrogate LSO has the gradient of a leaky step (374, 418).",
        [
            (
                "surrogate.py",
                "return StochasticSpikeOperator.apply(x, slope)",
                "return LeakySpikeOperator.apply(x, slope)",
            ),
            ("surrogate.py", "        return grad\n\n\ndef LSO(", "        return grad, None\n\n\ndef LSO("),
        ],
    ),
    Change(
        "SpikeRateEscape.backward is a static method (418).",
        [
            (
                "surrogate.py",
                "    def backward(ctx, grad_output):\n        (input_,) = ctx.saved_tensors\n"
                "        grad_input = grad_output.clone()\n        grad = (\n            grad_input\n"
                "            * ctx.slope\n            * torch.exp(-ctx.beta",
                "    @staticmethod\n    def backward(ctx, grad_output):\n        (input_,) = ctx.saved_tensors\n"
                "        grad_input = grad_output.clone()\n        grad = (\n            grad_input\n"
                "            * ctx.slope\n            * torch.exp(-ctx.beta",
            )
        ],
    ),
    Change(
        "spikegen.latency keeps the dtype of the data (445).",
        [
            (
                "spikegen.py",
                "            (tuple([num_steps] + list(spike_time.size()))),\n            dtype=dtype,",
                "            (num_steps, *spike_time.shape),\n            dtype=data.dtype,",
            ),
            ("spikegen.py", "    ).float()  # Needs to be float", "    ).clone()  # Needs to be float"),
            (
                "spikegen.py",
                "        (tuple([num_steps] + list(spike_time.size()))),\n        dtype=dtype,",
                "        (num_steps, *spike_time.shape),\n        dtype=spike_time.dtype,",
            ),
        ],
    ),
    Change(
        "state_quant keeps the dtype of the state (444).",
        [("functional/quant.py", "levels = levels.to(device)", "levels = levels.to(input_)")],
    ),
    Change(
        "Population codes keep the dtype of the spikes (434, 451).",
        [
            ("functional/acc.py", f"{_COUNTED}.to(device)", "spk_out.new_zeros(spk_out.size(1), num_classes)"),
            (
                "functional/loss.py",
                f"{_COUNTED}.to(\n            device\n        )",
                "spk_out.new_zeros(spk_out.size(1), num_classes)",
            ),
        ],
    ),
    Change(
        "LeakyParallel takes a beta for each neuron, and refuses one of another length (441).",
        [
            (
                "_neurons/leakyparallel.py",
                "elif isinstance(self.beta, torch.Tensor) or isinstance(\n"
                "                    self.beta, torch.FloatTensor\n                ):\n"
                "                    if len(self.beta) == 1:\n"
                "                        self.rnn.weight_hh_l0.fill_(self.beta[0])",
                "elif self.beta.numel() == 1:\n                    self.rnn.weight_hh_l0.fill_(self.beta.item())",
            )
        ],
    ),
    Change(
        "LeakyParallel drops out of its membranes; nn.RNN of one layer drops nothing (405).",
        [
            ("_neurons/leakyparallel.py", "            dropout=dropout,\n", ""),
            (
                "_neurons/leakyparallel.py",
                "        self._beta_buffer(beta, learn_beta)\n",
                "        self.dropout = nn.Dropout(dropout)\n        self._beta_buffer(beta, learn_beta)\n",
            ),
            ("_neurons/leakyparallel.py", "mem_shift = mem[0] - ", "mem_shift = self.dropout(mem[0]) - "),
        ],
    ),
    Change("The version says so.", [("_version.py", "__version__ = '1.0.0'", "__version__ = '1.0.0+next'")]),
]

_CHAIN = """        if self.reset_mechanism_val == 0:  # reset by subtraction
            self.state_function = self._base_sub
        elif self.reset_mechanism_val == 1:  # reset to zero
            self.state_function = self._base_zero
        elif self.reset_mechanism_val == 2:  # no reset, pure integration
            self.state_function = self._base_int
"""
_FUNCTIONS = """
    reset_dict = {**LIF.reset_dict, "subtract_beta": 3}

    def _set_reset_function(self):
        names = ("_base_sub", "_base_zero", "_base_int", "_base_sub_beta")
        self.state_function = getattr(self, names[int(self.reset_mechanism_val)])

    def _base_sub_beta(self, input_):
        return self._base_state_function(input_) - self.beta.clamp(0, 1) * self.reset * self.threshold

    def _init_mem(self):
"""

RESETS = [
    Change(
        "A class names its reset mechanisms, and setting reset_mechanism changes the step (426).",
        [
            (
                "_neurons/neurons.py",
                'reset_mechanism != "subtract"\n            and reset_mechanism != "zero"\n'
                '            and reset_mechanism != "none"\n',
                "reset_mechanism not in self.reset_dict\n",
            ),
            ("_neurons/neurons.py", "SpikingNeuron.reset_dict[", "self.reset_dict["),
            (
                "_neurons/neurons.py",
                "        self._reset_mechanism = new_reset_mechanism\n",
                "        self._reset_mechanism = new_reset_mechanism\n        self._set_reset_function()\n\n"
                "    def _set_reset_function(self):\n        pass\n",
            ),
            *((f"_neurons/{file}.py", _CHAIN, "        self._set_reset_function()\n") for file in ("leaky", "rleaky")),
        ],
    ),
    Change(
        "Leaky and RLeaky have the reset mechanism subtract_beta: beta times the threshold is subtracted (426).",
        [(f"_neurons/{file}.py", "\n    def _init_mem(self):\n", _FUNCTIONS) for file in ("leaky", "rleaky")],
    ),
    Change(
        'Leaky by "zero" is zero after a spike, the input of that step too (426).',
        [
            (
                "_neurons/leaky.py",
                "        self.mem = (1 - self.reset) * self.mem\n        return self._base_state_function(input_)",
                "        mem = self._base_state_function(input_)\n        return mem - self.reset * mem",
            )
        ],
    ),
    Change("The version says so.", [("_version.py", "+next'", "+next.resets'")]),
]


def make(folder: Path, resets: bool = False) -> Path:
    """Write the copy to ``folder/snntorch``, overwriting an old one, and return that path.

    Raises:
        ValueError: a text to be replaced is missing.
    """
    spec = importlib.util.find_spec("snntorch")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("snntorch is not installed")
    copy = folder / "snntorch"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(spec.submodule_search_locations[0], copy, ignore=shutil.ignore_patterns("__pycache__"))
    for change in [*MERGED, *(RESETS if resets else [])]:
        for name, text, replacement in change.edits:
            file = copy / name
            content = file.read_text(encoding="utf-8")
            if text not in content:
                raise ValueError(f"{change.does} {name} has no {text!r}: the installed snntorch is not 1.0.0")
            file.write_text(content.replace(text, replacement), encoding="utf-8")
    return copy


def main() -> int:
    parser = argparse.ArgumentParser(prog="next_snntorch.py", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resets", action="store_true", help="add the open pull request 426")
    args = parser.parse_args()
    print(make(args.folder, args.resets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
