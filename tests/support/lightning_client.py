"""A program with Lightning's IPU strategies, run by ``tests/poptorch/test_lightning.py``; it never mentions snnipu.

Arguments: the package of the strategy, and a folder for checkpoints. It prints a line of JSON: the settings of the
training, accuracies, and whether a checkpoint gives the predictions of the model outside of PopTorch.
"""

import json
import sys

import poptorch
import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import snnipu as snn


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = snn.MultiStep(nn.Linear(64, 100), snn.Leaky(beta=0.9), nn.Linear(100, 10), snn.Leaky(beta=0.9))
        self.loss = snn.functional.ce_count_loss()

    def training_step(self, batch, number):
        images, labels = batch
        return poptorch.identity_loss(self.loss(self.net(images, num_steps=10)[0], labels), "none")

    def validation_step(self, batch, number):
        images, labels = batch
        return (self.predict_step((images,), number) == labels).float().mean()

    test_step = validation_step

    def predict_step(self, batch, number):
        return self.net(batch[0], num_steps=10)[0].sum(0).argmax(1)

    def on_validation_batch_end(self, outputs, *args):
        self.log("validation", outputs.mean())

    def on_test_batch_end(self, outputs, *args):
        self.log("test", outputs.mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


def strategy_of(package):
    """Return arguments of ``Trainer`` and a function that makes a loader, for Lightning's or lightning-graphcore's
    strategy.

    Lightning converts loaders to PopTorch's for its own strategy only.
    """
    if package == "lightning":
        trainer_options = {
            "accelerator": "ipu",
            "devices": 2,
            "strategy": pl.strategies.IPUStrategy(device_iterations=2),
        }
        return trainer_options, lambda data, training: DataLoader(data, batch_size=10, shuffle=training)

    from lightning_graphcore import IPUAccelerator, IPUPrecision, IPUStrategy

    options = [poptorch.Options().deviceIterations(2).replicationFactor(2) for _ in range(2)]
    arguments = {
        "accelerator": IPUAccelerator(),
        "strategy": IPUStrategy(training_opts=options[0], inference_opts=options[1]),
        "plugins": [IPUPrecision("32-true")],
    }
    return arguments, lambda data, training: poptorch.DataLoader(
        options[0 if training else 1], data, batch_size=10, shuffle=training
    )


def main(package, folder):
    def trainer():
        return pl.Trainer(
            **strategy_of(package)[0],
            max_epochs=2,
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    pl.seed_everything(0)
    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    images = images.float() / 16
    order = torch.randperm(len(images))
    images, labels = images[order], labels[order]
    loader = strategy_of(package)[1]
    train = loader(TensorDataset(images[:1400], labels[:1400]), True)
    test = loader(TensorDataset(images[1400:], labels[1400:]), False)
    model, fitting = Digits(), trainer()
    fitting.fit(model, train, test)
    loaded = Digits.load_from_checkpoint(fitting.checkpoint_callback.best_model_path)
    predictions = torch.cat(trainer().predict(loaded, test))
    by_hand = model.predict_step((images[1400 : 1400 + len(predictions)],), 0)
    report = {
        "replicas": fitting.strategy.training_opts.replication_factor,
        "steps": fitting.global_step,
        "lr": fitting.optimizers[0].param_groups[0]["lr"],
        "validation": float(fitting.callback_metrics["validation"]),
        "test": trainer().test(model, test, verbose=False)[0]["test"],
        "predictions": len(predictions),
        "checkpoint": torch.equal(predictions, by_hand.int()),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
