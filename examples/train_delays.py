"""Train spoken digits with and without delays: networks with about as many parameters, several seeds, one line each.

    python examples/train_delays.py FOLDER --seeds 3

FOLDER holds the recordings of the Free Spoken Digit Dataset. The best epoch is selected on a validation set, 300
recordings of the training set drawn once. The test set is evaluated once, for that epoch.
"""

import argparse
import json
import sys
import time
from typing import Any, Dict, List, Tuple

import torch
from torch import nn
from tqdm import tqdm

import snnipu as snn
from snnipu import datasets

STEPS, CHANNELS, LONGEST = 100, 70, 25
# Hidden neurons of each kind, chosen so that all kinds have about as many parameters.
KINDS = {"none": 196, "fixed": 196, "axonal": 194, "synaptic": 128, "recurrent": 120}


def layer(kind: str, inputs: int, outputs: int) -> nn.Module:
    if kind in ("none", "recurrent"):
        return nn.Linear(inputs, outputs, bias=False)
    delay = torch.rand(1, inputs) * LONGEST if kind == "axonal" else None
    return snn.DelayLinear(inputs, outputs, LONGEST, delay=delay, learn_delay=kind != "fixed")


def network(kind: str, slope: float) -> snn.MultiStep:
    hidden, surrogate = KINDS[kind], snn.surrogate.fast_sigmoid(slope) if slope else snn.surrogate.atan()
    modules: List[nn.Module] = []
    for inputs in (CHANNELS, hidden):
        modules += [layer(kind, inputs, hidden), nn.Dropout(0.3)]
        if kind == "recurrent":
            modules.append(snn.RLeaky(beta=0.9, linear_features=hidden, spike_grad=surrogate))
            nn.init.orthogonal_(modules[-1].recurrent.weight, 0.2)
        else:
            modules.append(snn.Leaky(beta=0.9, threshold=1.0, spike_grad=surrogate))
    net = snn.MultiStep(*modules, nn.Linear(hidden, 10), snn.Leaky(beta=0.97, reset_mechanism="none"))
    with torch.no_grad():
        for module in net:
            if isinstance(module, (nn.Linear, snn.DelayLinear)):
                module.weight.mul_(4)
    return net


def batches(data: Any, indices: torch.Tensor, size: int) -> Any:
    for part in indices.split(size):
        yield data[0][:, part], data[1][part]


def loaded(split: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return all recordings as a dense tensor ``[T, N, channels]``, and their classes."""
    items = [split[number] for number in range(len(split))]
    return torch.cat([spikes.to_dense() for spikes, _ in items], 1), torch.tensor([int(label) for _, label in items])


def accuracy(net: nn.Module, data: Any) -> float:
    net.eval()
    right = 0
    with torch.no_grad():
        for x, labels in batches(data, torch.arange(len(data[1])), 100):
            right += int((net(x)[1].mean(0).argmax(1) == labels).sum())
    return right / len(data[1])


def train(kind: str, seed: int, sets: List[Any], arguments: argparse.Namespace) -> Dict[str, Any]:
    torch.manual_seed(seed)
    epochs = arguments.epochs
    net, (training, validation, test) = network(kind, arguments.slope), sets
    delays = [p for name, p in net.named_parameters() if name.endswith("delay")]
    weights = [p for name, p in net.named_parameters() if not name.endswith("delay")]
    groups = [{"params": weights, "lr": 2e-3}, *([{"params": delays, "lr": 0.2}] if delays else [])]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    best, state, started = -1.0, None, time.monotonic()
    for _ in tqdm(range(epochs), f"{kind}, seed {seed}", leave=False, disable=None):
        net.train()
        for x, labels in batches(training, torch.randperm(len(training[1])), 64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x)[1].mean(0), labels).backward()
            if arguments.clip:
                nn.utils.clip_grad_norm_(net.parameters(), arguments.clip)
            optimizer.step()
        schedule.step()
        validated = accuracy(net, validation)
        if validated > best:
            best, state = validated, {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(state)
    return {
        "kind": kind,
        "seed": seed,
        "parameters": sum(p.numel() for p in net.parameters()),
        "validation": best,
        "test": accuracy(net, test),
        "seconds": time.monotonic() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"default: {','.join(KINDS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--slope", type=float, default=5.0, help="slope of the fast-sigmoid surrogate; 0: atan")
    parser.add_argument("--clip", type=float, default=1.0, help="maximum norm of all gradients; 0: no clipping")
    parser.add_argument("--test-speakers", help="test on these speakers instead of recordings 0 to 4 of each")
    arguments = parser.parse_args()
    speakers = arguments.test_speakers.split(",") if arguments.test_speakers else None
    data = datasets.spoken_digits(arguments.folder, STEPS, channels=CHANNELS, test_speakers=speakers)
    all_training = loaded(data.train)
    in_validation = torch.zeros(len(all_training[1]), dtype=torch.bool)
    in_validation[torch.randperm(len(in_validation), generator=torch.Generator().manual_seed(0))[:300]] = True
    sets = [(all_training[0][:, mask], all_training[1][mask]) for mask in (~in_validation, in_validation)] + [
        loaded(data.test)
    ]
    print(
        f"{', '.join(str(len(split[1])) for split in sets)} recordings for training, validation, test", file=sys.stderr
    )
    for kind in arguments.kinds.split(","):
        for seed in range(arguments.seeds):
            print(json.dumps(train(kind, seed, sets, arguments)), flush=True)


if __name__ == "__main__":
    main()
