"""Time and count the tutorial network on the IPU model: 784-1000-10, 25 steps, batch 128, forward and backward.

    python examples/ipu_tutorial.py [--kind dense layers network] [--json FILE]

``dense`` is the tutorial's network: ``snn.Leaky``, and products by PyTorch on the host. ``layers`` is its event-driven
twin of SparseLinear, NeuronSequence and SelectSpikes. ``network`` is the operator SparseNetwork, with a step from layer
to layer. Seconds are those of a training step of ``poptorch.trainingModel`` on this machine. The first step builds the
programs, the second only runs them. Cycles and memory are counted by the model.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

import snnipu as snn
from snnipu import poptorch

KINDS = ("dense", "layers", "network")
# Slots are the spikes of a sample and step that a layer outputs; activity is the fraction of the input that spikes.
NUMBERS = {"--batch-size": 128, "--steps": 25, "--slots": 128, "--activity": 0.1}


class Tutorial(nn.Module):
    """A network of :data:`KINDS`; returns the spike counts of the last layer and their loss."""

    def __init__(self, kind, sizes, slots):
        super().__init__()
        torch.manual_seed(0)
        caps = [min(size, slots) for size in sizes]
        self.dense, self.limit = kind == "dense", caps[0]
        options = {"beta": 0.95, "input_scale": 4.0}
        layers = list(zip(sizes, sizes[1:], caps[1:]))
        if kind == "dense":
            pairs = [(nn.Linear(n, m), snn.Leaky(beta=0.95, spike_grad=snn.surrogate.atan())) for n, m, _ in layers]
            self.net = snn.MultiStep(*(module for pair in pairs for module in pair))
        elif kind == "layers":
            sparse = [snn.SparseLeaky(n, m, max_spikes=cap, path="sparse", **options) for n, m, cap in layers]
            self.net = nn.Sequential(*sparse)
        else:
            self.net = snn.SparseNetwork(sizes, max_spikes=caps, **options)

    def forward(self, x, labels):
        sparse = None if self.dense else self.net(snn.ops.dense_to_sparse(x, self.limit))
        counts = self.net(x)[0].sum(0) if sparse is None else sparse.spike_count()
        return counts, poptorch.identity_loss(nn.functional.cross_entropy(counts, labels), "none")


def measure(kind, sizes, options):
    """Return the seconds and the model's counts of two training steps."""
    net = Tutorial(kind, sizes, options.slots)
    before = [weight.detach().clone() for weight in net.parameters()]
    torch.manual_seed(1)
    x = (torch.rand(options.steps, options.batch_size, sizes[0]) < options.activity).float()
    labels = torch.randint(sizes[-1], (options.batch_size,))
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1)
    model = poptorch.trainingModel(net, poptorch.Options().useIpuModel(True), optimizer)
    seconds, losses = [], []
    for _ in range(2):
        start = time.perf_counter()
        losses.append(float(model(x, labels)[1].detach()))
        seconds.append(time.perf_counter() - start)
    keys = ("compute_cycles", "exchange_cycles", "tile_memory_max_bytes")
    operators = [
        {"operator": entry["operator"], **{key: entry["report"][key] for key in keys}}
        for entry in model.ipuModelReport()
    ]
    return {
        "kind": kind,
        "sizes": sizes,
        "batch_size": options.batch_size,
        "steps": options.steps,
        "seconds_first": seconds[0],
        "seconds_next": seconds[1],
        "losses": losses,
        "weights_changed": all(not torch.equal(old, new.detach()) for old, new in zip(before, net.parameters())),
        "tile_memory_max_bytes": max(entry["tile_memory_max_bytes"] for entry in operators),
        "cycles": sum(entry["compute_cycles"] + entry["exchange_cycles"] for entry in operators) / 2,
        "operators": operators,
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sizes", default="784,1000,10", help="neurons of the input and of each layer")
    for name, default in NUMBERS.items():
        parser.add_argument(name, type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    results = []
    for kind in options.kind:
        result = measure(kind, list(map(int, options.sizes.split(","))), options)
        results.append(result)
        print(
            f"{kind:8} first step {result['seconds_first']:5.1f} s, next {result['seconds_next']:5.1f} s; the model: "
            f"{result['cycles'] / 1e6:.2f} million cycles, fullest tile {result['tile_memory_max_bytes'] / 1024:.0f} "
            "KiB",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return results


if __name__ == "__main__":
    main()
