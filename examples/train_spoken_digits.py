"""Train spoken digits by a surrogate and by EventProp: the same network from the same weights, one line for each run.

    python examples/train_spoken_digits.py FOLDER --picture spoken-digits.png

FOLDER holds the recordings of the Free Spoken Digit Dataset. The loss is a cross-entropy of integrals of the output's
membranes: ``shaped`` weights them by ``exp(-t / T)``, ``plain`` does not. ``woken`` is ``shaped``, and the weights of
hidden neurons that are silent in more than 95 % of a batch grow after each step of the optimizer. The best epoch is
selected on a validation set, a ninth of the training set. The test set is evaluated once, for that epoch.

Source: Nowotny, Turner & Knight, "Loss shaping enhances exact gradient learning with Eventprop in spiking neural
networks", arXiv 2212.01232, 2022.
"""

import argparse
import json
import math
import sys
import time
from typing import Any, Dict, List, Tuple

import torch
from torch import nn
from torch.utils.data import Subset
from tqdm import tqdm

import snnipu as snn
from snnipu import datasets, plotting

STEPS, STEP_MS, CHANNELS, CLASSES = 120, 5, 70, 10
KINDS = (
    "surrogate-plain",
    "surrogate-shaped",
    "eventprop-plain",
    "eventprop-shaped",
    "eventprop-woken",  # shaped, and the weights of silent neurons grow
)


class Network(nn.Module):
    """A hidden layer, and an output layer that does not spike."""

    def __init__(self, kind: str, hidden: int, tau_m: float, tau_s: float) -> None:
        super().__init__()
        alpha, beta = math.exp(-STEP_MS / tau_s), math.exp(-STEP_MS / tau_m)
        options: Dict[str, Any] = {"alpha": alpha, "beta": beta, "input_scale": 1 - beta, "reset_mechanism": "subtract"}
        if kind.startswith("eventprop"):
            options["gradient"] = "eventprop"
        else:
            options["spike_grad"] = snn.surrogate.fast_sigmoid(5)
        self.hidden = snn.SparseSynaptic(CHANNELS, hidden, **options)
        self.output = snn.SparseSynaptic(hidden, CLASSES, threshold=1e9, **options)
        with torch.no_grad():  # nearly every hidden neuron spikes
            self.hidden.weight.normal_(0.03, 0.2)
            self.output.weight.normal_(0, 1 / math.sqrt(hidden))

    def forward(self, x: snn.SparseSpikes) -> Tuple[snn.SparseSpikes, torch.Tensor]:
        """Return the spikes of the hidden layer, and the membranes of the output ``[T, B, classes]``."""
        spikes = self.hidden(x)
        return spikes, self.output.membranes(spikes)


def scores(mem: torch.Tensor, kind: str) -> torch.Tensor:
    """Return the integrals of the membranes over time ``[B, classes]``, in units of 50 ms."""
    if not kind.endswith("plain"):
        mem = mem * torch.exp(-torch.arange(STEPS) / STEPS)[:, None, None]
    return mem.sum(0) * STEP_MS / 50


def evaluate(net: Network, batches: Any, kind: str) -> Dict[str, float]:
    """Return the accuracy, the activity of the hidden layer, and the share of its neurons that never spike."""
    right, counts = 0, []
    with torch.no_grad():
        for x, labels in batches:
            spikes, mem = net(x)
            right += int((scores(mem, kind).argmax(1) == labels).sum())
            counts.append(spikes.spike_count())
    count = torch.cat(counts)
    silent = (count.sum(0) == 0).float().mean()
    return {"accuracy": right / len(count), "activity": float(count.mean()) / STEPS, "silent": float(silent)}


def train(kind: str, seed: int, sets: List[Any], arguments: argparse.Namespace) -> Dict[str, Any]:
    torch.manual_seed(seed)
    training, validation, test = sets
    net = Network(kind, arguments.hidden, arguments.tau_m, arguments.tau_s)
    optimizer = torch.optim.Adam(net.parameters(), lr=arguments.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    best, state, started, history = -1.0, None, time.process_time(), []
    for _ in tqdm(range(arguments.epochs), f"{kind}, seed {seed}", leave=False, disable=None):
        in_order = Subset(training, torch.randperm(len(training)).tolist())
        for x, labels in datasets.event_loader(in_order, batch_size=arguments.batch_size):
            spikes, mem = net(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores(mem, kind), labels).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            if kind == "eventprop-woken":
                snn.functional.wake_silent(net.hidden.weight, spikes, share=0.95, by=2e-3)
        schedule.step()
        history.append(evaluate(net, validation, kind)["accuracy"])
        if history[-1] > best:
            best, state = history[-1], {name: value.clone() for name, value in net.state_dict().items()}
    seconds = time.process_time() - started
    net.load_state_dict(state)
    run = {"kind": kind, "seed": seed, "validation": history, "seconds": seconds}
    return {**run, **evaluate(net, test, kind)}


def drawing(runs: List[Dict[str, Any]]) -> Any:
    figure = plotting.new_figure(7, 3.2)
    axis = figure.subplots()
    for run in runs:
        gradient, loss = run["kind"].split("-")
        axis.plot(
            range(1, len(run["validation"]) + 1),
            [100 * accuracy for accuracy in run["validation"]],
            color=plotting.BLUE if gradient == "eventprop" else plotting.MUTED,
            linestyle={"plain": ":", "shaped": "-", "woken": "--"}[loss],
            label=run["kind"] if run["seed"] == 0 else None,
        )
    axis.set(xlabel="epoch", ylabel="validation accuracy (%)", ylim=(40, 100))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"default: {','.join(KINDS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--hidden", type=int, default=128, help="hidden neurons")
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--tau-m", type=float, default=20.0, help="time constant of the membranes, in ms")
    parser.add_argument("--tau-s", type=float, default=20.0, help="time constant of the synaptic currents, in ms")
    parser.add_argument("--picture", help="file for a picture of the accuracies of all epochs")
    arguments = parser.parse_args()
    data = datasets.spoken_digits(arguments.folder, STEPS, step_us=1000 * STEP_MS, channels=CHANNELS)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0)).tolist()
    held_out = len(order) // 9
    training, validation = Subset(data.train, order[held_out:]), Subset(data.train, order[:held_out])
    batches = [list(datasets.event_loader(split, batch_size=100)) for split in (validation, data.test)]
    sizes = f"{len(training)}, {held_out}, {len(data.test)} recordings for training, validation, test"
    print(sizes, file=sys.stderr)
    runs = []
    for seed in range(arguments.seeds):
        for kind in arguments.kinds.split(","):
            runs.append(train(kind, seed, [training, *batches], arguments))
            print(json.dumps(runs[-1]), flush=True)
    if arguments.picture:
        drawing(runs).savefig(arguments.picture)


if __name__ == "__main__":
    main()
