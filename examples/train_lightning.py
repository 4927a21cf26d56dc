"""Train a MultiStep or a SparseNetwork on batches of events with Lightning.

python examples/train_lightning.py --network sparse --processes 2
"""

import argparse

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import snnipu as snn
from snnipu import datasets, training


class Classifier(lightning.LightningModule):
    def __init__(self, network, neurons, classes):
        super().__init__()
        self.sparse = network == "sparse"
        if self.sparse:
            self.net = training.benchmark_network([neurons, 64, classes], activity=0.2, grad_threshold=None)
        else:
            self.net = snn.MultiStep(
                torch.nn.Linear(neurons, 64), snn.Leaky(beta=0.95), torch.nn.Linear(64, classes), snn.Leaky(beta=0.95)
            )

    def forward(self, spikes):
        out = self.net(spikes if self.sparse else spikes.to_dense())
        return out.spike_count() if self.sparse else out[0].sum(0)

    def training_step(self, batch, index):
        spikes, labels = batch
        loss = torch.nn.functional.cross_entropy(self(spikes), labels)
        self.log("loss", loss, batch_size=len(labels))
        return loss

    def validation_step(self, batch, index):
        spikes, labels = batch
        right = (self(spikes).argmax(1) == labels).float().mean()
        self.log("accuracy", right, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class Events(lightning.LightningDataModule):
    """The data of each process: Lightning adds a DistributedSampler to the loaders."""

    def __init__(self, data, batch_size):
        super().__init__()
        self.data, self.batch_size = data, batch_size

    def train_dataloader(self):
        return datasets.event_loader(self.data.train, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return datasets.event_loader(self.data.test, self.batch_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=("dense", "sparse"), default="dense")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    lightning.seed_everything(0)
    data = datasets.randman(num_classes=3, samples_per_class=100, num_steps=30)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.processes,
        strategy="auto" if options.processes == 1 else DDPStrategy(process_group_backend="gloo"),
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(options.network, data.num_neurons, data.num_classes), Events(data, 16))
    if trainer.is_global_zero:
        print(f"accuracy: {trainer.callback_metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()
