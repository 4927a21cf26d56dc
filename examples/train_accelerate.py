"""Train a MultiStep or a SparseNetwork on batches of events with Accelerate.

accelerate launch --cpu --num_processes 2 examples/train_accelerate.py --network sparse
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DistributedSampler, Subset

import snnipu as snn
from snnipu import datasets, training


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=("dense", "sparse"), default="dense")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    data = datasets.randman(num_classes=3, samples_per_class=100, num_steps=30)
    sparse = options.network == "sparse"
    sizes = [data.num_neurons, 64, data.num_classes]
    if sparse:
        net = training.benchmark_network(sizes, activity=0.2, grad_threshold=None)
    else:
        first, last = torch.nn.Linear(*sizes[:2]), torch.nn.Linear(*sizes[1:])
        net = snn.MultiStep(first, snn.Leaky(beta=0.95), last, snn.Leaky(beta=0.95))

    # A sampler divides the data: prepare() would divide SparseSpikes by their first dimension, time.
    ranks = {"num_replicas": accelerator.num_processes, "rank": accelerator.process_index}
    shares = DistributedSampler(range(len(data.train)), **ranks)
    batches = torch.utils.data.BatchSampler(shares, 16, drop_last=False)
    loader = datasets.event_loader(data.train, batch_sampler=batches)
    own_test = Subset(data.test, range(ranks["rank"], len(data.test), ranks["num_replicas"]))
    net, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=3e-3))

    def scores(spikes):
        out = net(spikes if sparse else spikes.to_dense())
        return out.spike_count() if sparse else out[0].sum(0)

    for epoch in range(options.epochs):
        shares.set_epoch(epoch)
        for spikes, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(scores(spikes), labels))
            optimizer.step()
    with torch.no_grad():
        right = sum(
            (scores(spikes).argmax(1) == labels).sum() for spikes, labels in datasets.event_loader(own_test, 16)
        )
    right = accelerator.reduce(right)
    accelerator.print(f"accuracy: {int(right) / len(data.test):.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
