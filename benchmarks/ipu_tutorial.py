"""The tutorial network, 784-1000-10 over 25 steps, batch 128, through the IPU model, forward and backward: how long it
takes here, and what the model counts.

    python benchmarks/ipu_tutorial.py [--kind dense layers network] [--json FILE]

``dense`` is the tutorial's network, with ``snn.Leaky`` on products that PyTorch makes on the host; ``layers`` its
event-driven twin of SparseLinear, LifSequence and SelectSpikes; ``network`` that of the operator SparseNetwork, with a
step from layer to layer. Seconds are this machine's, for a training step of ``poptorch.trainingModel``: the first one
makes the programs, the second only runs them. Cycles and memory are the model's.
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


class Tutorial(nn.Module):
    """One of :data:`KINDS`; returns the spike counts of the last layer and their loss."""

    def __init__(self, kind, sizes, slots):
        super().__init__()
        torch.manual_seed(0)
        caps = [min(size, slots) for size in sizes]
        self.dense = kind == "dense"
        if kind == "dense":
            self.net = snn.MultiStep(
                *(
                    module
                    for before, after in zip(sizes, sizes[1:])
                    for module in (nn.Linear(before, after), snn.Leaky(beta=0.95, spike_grad=snn.surrogate.atan()))
                )
            )
        elif kind == "layers":
            self.net = nn.Sequential(
                *(
                    snn.SparseLeaky(before, after, beta=0.95, max_spikes=cap, input_scale=4.0, path="sparse")
                    for before, after, cap in zip(sizes, sizes[1:], caps[1:])
                )
            )
        else:
            self.net = snn.SparseNetwork(sizes, beta=0.95, max_spikes=caps, input_scale=4.0)
        self.limit = caps[0]

    def forward(self, x, labels):
        if self.dense:
            out = self.net(x)
            counts = (out[0] if isinstance(out, tuple) else out).sum(0)
        else:
            spikes = snn.ops.dense_to_sparse(x, self.limit)
            counts = self.net(spikes).spike_count()
        return counts, poptorch.identity_loss(nn.functional.cross_entropy(counts, labels), "none")


def measure(kind, sizes, batch, steps, slots, activity):
    """Two training steps."""
    net = Tutorial(kind, sizes, slots)
    before = [weight.detach().clone() for weight in net.parameters()]
    torch.manual_seed(1)
    x, labels = (torch.rand(steps, batch, sizes[0]) < activity).float(), torch.randint(sizes[-1], (batch,))
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1)
    model = poptorch.trainingModel(net, poptorch.Options().useIpuModel(True), optimizer)
    seconds, losses = [], []
    for _ in range(2):
        start = time.perf_counter()
        losses.append(float(model(x, labels)[1].detach()))
        seconds.append(time.perf_counter() - start)
    operators = [
        {
            "operator": entry["operator"],
            "inputs": entry["inputs"][:1],
            **{key: entry["report"][key] for key in ("compute_cycles", "exchange_cycles", "tile_memory_max_bytes")},
        }
        for entry in model.ipuModelReport()
    ]
    return {
        "kind": kind,
        "sizes": sizes,
        "batch_size": batch,
        "steps": steps,
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
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--slots", type=int, default=128, help="spikes of a sample and step that a layer passes on")
    parser.add_argument("--activity", type=float, default=0.1, help="share of the input that spikes")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    sizes = [int(size) for size in asked.sizes.split(",")]
    found = []
    for kind in asked.kind:
        made = measure(kind, sizes, asked.batch_size, asked.steps, asked.slots, asked.activity)
        found.append(made)
        print(
            f"{kind:8} first step {made['seconds_first']:5.1f} s, next {made['seconds_next']:5.1f} s; the model: "
            f"{made['cycles'] / 1e6:.2f} million cycles, fullest tile {made['tile_memory_max_bytes'] / 1024:.0f} KiB",
            flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
