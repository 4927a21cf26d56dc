"""Compare backpropagation through time with the rules of ``snnipu.Online``: a table of accuracies over several seeds.

    python examples/train_online.py --seeds 3
    python examples/train_online.py --nmnist FOLDER --seeds 3

Without a folder the data are Randman (Zenke and Vogels 2021): spike times on smooth random manifolds, one for each
class. FOLDER holds N-MNIST's ``Train`` and ``Test``. The network has two hidden layers. The loss is the cross entropy
of a leaky readout's membranes at each step; DECOLLE has such a loss for each layer. All learners use the same learning
rate, batches and number of epochs. No setting is tuned to a rule. The test set is evaluated once, after the last epoch.
"""

import argparse
import json
import statistics
import time
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

import snnipu as snn
from snnipu import datasets

# For each learner: its rule (None: backpropagation through time), and the rule's options.
LEARNERS: Dict[str, Tuple[Any, Dict[str, Any]]] = {
    "bptt": (None, {}),
    "sltt": ("sltt", {}),
    "ottt": ("ottt", {}),
    "eprop": ("eprop", {"low_pass": False}),
    "eprop-random": ("eprop", {"low_pass": False, "feedback": "random"}),
    "snap1": ("snap1", {}),
    "decolle": ("decolle", {}),
}
BATCH, EVALUATION_BATCH = 32, 100


class Learner:
    """A network, and the method that computes its gradients."""

    def __init__(self, name: str, inputs: int, hidden: int, classes: int, chunk: int, gain: float) -> None:
        rule, options = LEARNERS[name]
        self.rule, self.chunk, self.classes = rule, chunk, classes
        modules: List[nn.Module] = []
        for size in (inputs, hidden):
            modules += [nn.Linear(size, hidden, bias=False), snn.Leaky(beta=0.95)]
        if rule != "decolle":  # decolle classifies by the readout of its last hidden layer
            modules += [nn.Linear(hidden, classes, bias=False), snn.Leaky(beta=0.95, reset_mechanism="none")]
        self.net: Any = snn.MultiStep(*modules)
        with torch.no_grad():
            for module in modules[:4]:
                if isinstance(module, nn.Linear):
                    module.weight.mul_(gain)
        if rule == "decolle":
            options = {"readouts": classes}
        self.online = None if rule is None else snn.Online(self.net, rule=rule, **options)

    def parts(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        return [x] if self.online is None else x.split(self.chunk)

    def outputs(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the inputs of the losses, ``[Tc, B, classes]`` each; the last one classifies."""
        results = (self.net if self.online is None else self.online)(part)
        return list(self.online.readouts) if self.online is not None and self.rule == "decolle" else [results[1]]

    def reset(self) -> None:
        if self.online is not None:
            self.online.reset()

    def learn(self, x: torch.Tensor, labels: torch.Tensor) -> None:
        """Add the gradients of a batch ``[T, B, inputs]``."""
        self.reset()
        for part in self.parts(x):
            each = labels.expand(len(part), -1).flatten()
            losses = [cross_entropy(out.flatten(0, 1), each) * len(part) / len(x) for out in self.outputs(part)]
            torch.stack(losses).sum().backward()

    @torch.no_grad()
    def answers(self, x: torch.Tensor) -> torch.Tensor:
        self.reset()
        scores = sum(self.outputs(part)[-1].sum(0) for part in self.parts(x))
        assert isinstance(scores, torch.Tensor)
        return scores.argmax(1)


def batches(data: Tuple[snn.SparseSpikes, torch.Tensor], order: torch.Tensor, size: int) -> Iterator[Any]:
    spikes, labels = data
    for part in order.split(size):
        yield spikes[:, part].to_dense(), labels[part]


def accuracy_of(learner: Learner, test: Any) -> float:
    correct = [
        (learner.answers(x) == labels).sum()
        for x, labels in batches(test, torch.arange(len(test[1])), EVALUATION_BATCH)
    ]
    return float(torch.stack(correct).sum()) / len(test[1])


def run(name: str, seed: int, train: Any, test: Any, arguments: argparse.Namespace) -> Dict[str, Any]:
    torch.manual_seed(seed)
    classes = int(train[1].max()) + 1
    learner = Learner(name, train[0].num_neurons, arguments.hidden, classes, arguments.chunk, arguments.gain)
    optimizer = torch.optim.Adam(learner.net.parameters(), lr=arguments.lr)
    start = time.process_time()
    for _ in tqdm(range(arguments.epochs), desc=f"{name}, seed {seed}", leave=False, disable=None):
        for x, labels in batches(train, torch.randperm(len(train[1])), BATCH):
            optimizer.zero_grad()
            learner.learn(x, labels)
            optimizer.step()
    return {
        "learner": name,
        "seed": seed,
        "test": accuracy_of(learner, test),
        "train": accuracy_of(learner, train),
        "processor_s": time.process_time() - start,
    }


def load(arguments: argparse.Namespace) -> Tuple[Any, Any]:
    if arguments.nmnist:
        data = datasets.nmnist(arguments.nmnist, num_steps=arguments.steps, step_us=300_000 / arguments.steps)
    else:
        data = datasets.randman(
            num_classes=10, samples_per_class=arguments.samples, num_steps=arguments.steps, dim=arguments.dim, alpha=2.0
        )
    return data.train.batch(range(len(data.train))), data.test.batch(range(len(data.test)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nmnist", metavar="FOLDER", help="N-MNIST's Train and Test (default: Randman)")
    parser.add_argument("--learners", nargs="+", choices=list(LEARNERS), default=list(LEARNERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--chunk", type=int, default=25)
    parser.add_argument("--samples", type=int, default=100, help="samples of each Randman class, a fifth for testing")
    parser.add_argument("--dim", type=int, default=2, help="dimension of Randman's manifolds (default: 2)")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--gain", type=float, default=4.0, help="factor of the initial hidden weights (default: 4)")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    train, test = load(arguments)
    print(f"{len(train[1])} training and {len(test[1])} test recordings of {train[0].num_neurons} neurons", flush=True)
    runs = []
    print("| learner | test accuracy, mean (lowest to highest) % | training % | processor s a run |")
    print("| --- | --- | --- | --- |", flush=True)
    for name in arguments.learners:
        seed_runs = [run(name, seed, train, test, arguments) for seed in range(arguments.seeds)]
        runs += seed_runs
        tests = [100 * row["test"] for row in seed_runs]
        print(
            f"| {name} | {statistics.mean(tests):.1f} ({min(tests):.1f} to {max(tests):.1f}) | "
            f"{100 * statistics.mean(row['train'] for row in seed_runs):.1f} | "
            f"{statistics.mean(row['processor_s'] for row in seed_runs):.0f} |",
            flush=True,
        )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(arguments), "runs": runs}, file, indent=1)


if __name__ == "__main__":
    main()
