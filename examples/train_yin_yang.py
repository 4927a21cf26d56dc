"""Train the Yin-Yang data set by the times of first spikes, with EventProp or a surrogate: one run, one line of JSON.

    python examples/train_yin_yang.py --gradient eventprop --seed 0 --json runs.jsonl
    python examples/train_yin_yang.py --gradient surrogate --seed 0 --json runs.jsonl
    python examples/train_yin_yang.py --draw runs.jsonl yin-yang.png

The data set is that of Kriener, Goeltz and Petrovici (arXiv 2102.08211, 2022): a point of the plane belongs to the yin,
to the yang or to a dot. Its coordinates x, y, 1 - x and 1 - y are the times of four spikes, and a fifth spike has a
fixed time. The output neuron that spikes first is the answer. The setting is that of Wunderlich and Pehle (Scientific
Reports 11, 2021). The epoch is not selected: the test set is evaluated once, after the last epoch.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
from torch import nn
from tqdm import tqdm

import snnipu as snn

# Milliseconds.
TAU_SYNAPSE, TAU_MEMBRANE, FIRST, LAST, BIAS, END = 5.0, 20.0, 10.0, 40.0, 20.0, 55.0
RADIUS, DOT = 0.5, 0.1  # of the circle, and of each dot
CLASSES = ("yin", "yang", "dot")
GRID = 64  # points of the picture's decision regions in each direction

Data = Tuple[snn.SparseSpikes, torch.Tensor]


def classes_of(points: torch.Tensor) -> torch.Tensor:
    """Return the class of each point ``[n, 2]`` within the circle."""
    to_right, to_left = ((points - torch.tensor([x * RADIUS, RADIUS])).norm(dim=1) for x in (1.5, 0.5))
    in_upper_half = points[:, 1] > RADIUS
    yin = (to_left > DOT) & (to_left <= RADIUS / 2) | in_upper_half & (to_right > RADIUS / 2)
    return torch.where(torch.minimum(to_right, to_left) <= DOT, 2, torch.where(yin, 0, 1))


def yin_yang(samples: int, seed: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return points ``[samples, 2]`` in [0, 1] and their classes. All classes are equally frequent."""
    points = torch.rand(10 * samples + 1000, 2, generator=torch.Generator().manual_seed(seed))
    points = points[(points - RADIUS).norm(dim=1) <= RADIUS]
    classes = classes_of(points)
    chosen = torch.cat([(classes == n).nonzero()[: (samples + 2 - n) // 3, 0] for n in range(3)])
    return points[chosen], classes[chosen]


def encoded(points: torch.Tensor, step: float) -> snn.SparseSpikes:
    """Return the five spikes of each point. A spike between two steps is divided between both."""
    times = FIRST + (LAST - FIRST) * torch.cat([points, 1 - points], 1)
    times = torch.cat([times, torch.full_like(times[:, :1], BIAS)], 1) / step
    before = times.long()
    x = torch.zeros(round(END / step), *times.shape)
    x.scatter_(0, before[None], (before + 1 - times)[None]).scatter_(0, before[None] + 1, (times - before)[None])
    return snn.SparseSpikes.from_dense(x)


def network(gradient: str, hidden: int, step: float, slope: float) -> snn.SparseNetwork:
    alpha, beta = math.exp(-step / TAU_SYNAPSE), math.exp(-step / TAU_MEMBRANE)
    net = snn.SparseNetwork(
        [5, hidden, len(CLASSES)],
        neuron="synaptic",
        alpha=alpha,
        beta=beta,
        input_scale=(beta - alpha) * TAU_SYNAPSE / (TAU_MEMBRANE - TAU_SYNAPSE),  # exact between spikes
        reset_mechanism="subtract",
        delay=0,
        gradient=gradient,
        spike_grad=None if gradient == "eventprop" else snn.surrogate.fast_sigmoid(slope),
    )
    with torch.no_grad():
        net.layers[0].weight.normal_(2, 4)  # weights of both signs: neurons that detect coincidences
        net.layers[1].weight.normal_(60 / hidden, 40 / hidden)
    return net


def first_times(spikes: snn.SparseSpikes, gradient: str, step: float) -> torch.Tensor:
    """Return the time of each neuron's first spike in milliseconds."""
    if gradient == "eventprop":
        return snn.functional.first_spike_times(spikes) * step
    # snnTorch's derivative of a time by its spike is -1.
    first: torch.Tensor = snn.functional.loss.SpikeTime.FirstSpike.apply(spikes.to_dense(), spikes.device)
    return first * step


def loss_of(times: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return a cross entropy in which the first spike wins, plus a term that keeps the right spike early.

    A sample whose right output is silent has no cross entropy. Its gradient would only delay the other outputs.
    """
    right = times.gather(1, labels[:, None]).squeeze(1)
    loss = nn.functional.cross_entropy(-times / 0.5, labels, reduction="none")
    return (loss * (right < END - 1) + 3e-4 * (right / 6.4).expm1()).mean()


def answers(net: snn.SparseNetwork, x: snn.SparseSpikes, gradient: str) -> torch.Tensor:
    with torch.no_grad():
        parts = torch.arange(x.batch_size).split(500)
        return torch.cat([first_times(net(x[:, part]), gradient, 1.0).argmin(1) for part in parts])


def accuracy(net: snn.SparseNetwork, data: Data, gradient: str) -> float:
    return (answers(net, data[0], gradient) == data[1]).float().mean().item()


def train(arguments: argparse.Namespace) -> Dict[str, Any]:
    gradient, step = arguments.gradient, arguments.step
    sets: List[Data] = []
    for samples, seed in ((arguments.samples, 0), (2000, 1), (10000, 2)):  # training, validation, test
        points, classes = yin_yang(samples, seed)
        sets.append((encoded(points, step), classes))
    (x, labels), validation, test = sets
    torch.manual_seed(arguments.seed)
    net = network(gradient, arguments.hidden, step, arguments.slope)
    optimizer = torch.optim.Adam(net.parameters(), lr=arguments.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    curve, silent, started, busy = [], 0, time.monotonic(), time.process_time()
    for _ in tqdm(range(arguments.epochs), f"{gradient}, seed {arguments.seed}", disable=None):
        silent = 0
        for batch in torch.randperm(len(labels)).split(arguments.batch):
            hidden, out = net(x[:, batch], all_layers=True)
            loss = loss_of(first_times(out, gradient, step), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            right = nn.functional.one_hot(labels[batch], len(CLASSES)).bool()
            snn.functional.wake_silent(net.layers[0].weight, hidden, share=0.9)
            silent += snn.functional.wake_silent(net.layers[1].weight, out, right)
        schedule.step()
        curve.append(round(accuracy(net, validation, gradient), 4))
    activity = [mean * len(x) for mean in net.activity or []]
    ticks = (torch.arange(GRID) + 0.5) / GRID
    regions = answers(net, encoded(torch.cartesian_prod(ticks, ticks), step), gradient).reshape(GRID, GRID)
    return {
        "gradient": gradient,
        "seed": arguments.seed,
        "epochs": arguments.epochs,
        "hidden": arguments.hidden,
        "step": step,
        "test": round(accuracy(net, test, gradient), 4),
        "validation": curve,
        "spikes per neuron": [round(mean, 2) for mean in activity],
        "silent outputs": silent,
        "seconds": round(time.monotonic() - started),
        "CPU seconds": round(time.process_time() - busy),
        "regions": ["".join(map(str, row)) for row in regions.tolist()],
    }


def draw(runs: List[Dict[str, Any]], path: str) -> None:
    """Draw the data set, the decision regions of the first run of each gradient, and all learning curves."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    from snnipu.plotting import BLUE, GREEN, INK, MUTED, RED

    colors = ListedColormap([BLUE, RED, GREEN])
    of_gradient = {name: [run for run in runs if run["gradient"] == name] for name in ("eventprop", "surrogate")}
    of_gradient = {name: chosen for name, chosen in of_gradient.items() if chosen}
    figure = Figure(figsize=(3.2 * (2 + len(of_gradient)), 3.2), layout="constrained")
    data, *maps, curves = figure.subplots(1, 2 + len(of_gradient))
    points, classes = yin_yang(1000, 2)
    data.scatter(*points.T, c=classes, cmap=colors, s=4)
    data.set_title("test set")
    for axes, (name, chosen) in zip(maps, of_gradient.items()):
        regions = torch.tensor([[int(one) for one in row] for row in chosen[0]["regions"]])
        axes.imshow(regions.T, origin="lower", extent=(0, 1, 0, 1), cmap=colors, vmin=0, vmax=2, alpha=0.6)
        axes.set_title(f"{name}: {100 * chosen[0]['test']:.1f} %")
    for axes in (data, *maps):
        axes.set_aspect("equal")
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 1), yticks=(0, 1))
        axes.add_artist(_circle())
    for (name, chosen), color in zip(of_gradient.items(), (INK, MUTED)):
        for number, run in enumerate(chosen):
            error = [100 * (1 - value) for value in run["validation"]]
            curves.plot(range(1, len(error) + 1), error, color=color, lw=1, label=None if number else name)
    curves.set(xlabel="epoch", title="validation error, %", yscale="log")
    curves.set_yticks([2, 3, 5, 10, 20], ["2", "3", "5", "10", "20"])
    curves.minorticks_off()
    curves.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _circle() -> Any:
    from matplotlib.patches import Circle

    return Circle((RADIUS, RADIUS), RADIUS, fill=False, lw=0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradient", choices=["eventprop", "surrogate"], default="eventprop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=200, help="neurons of the hidden layer")
    parser.add_argument("--step", type=float, default=1.0, help="length of a time step in milliseconds")
    parser.add_argument("--samples", type=int, default=5000, help="samples of the training set")
    parser.add_argument("--batch", type=int, default=150)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--slope", type=float, default=10.0, help="slope of the fast-sigmoid surrogate")
    parser.add_argument("--json", help="append the result to this file")
    parser.add_argument("--draw", nargs=2, metavar=("RUNS", "PICTURE"), help="draw the runs of a file, train nothing")
    arguments = parser.parse_args()
    if arguments.draw:
        runs, picture = arguments.draw
        draw([json.loads(line) for line in Path(runs).read_text(encoding="utf-8").splitlines()], picture)
        return
    line = json.dumps(train(arguments))
    print(line)
    if arguments.json:
        with open(arguments.json, "a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
