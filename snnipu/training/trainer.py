"""Training on images, each held constant over the time steps."""

from typing import Any, Dict, Iterator, Optional, Tuple

import torch
from snntorch.functional import ce_count_loss
from torch import nn

from snnipu.backends import backend_for
from snnipu.datasets import ImageData
from snnipu.neurons import MultiStep, run_segments
from snnipu.training.config import TrainConfig, check_positive_int
from snnipu.training.loop import TrainingLoop
from snnipu.training.network import build_network, layer_activity
from snnipu.training.online import OnlineSteps, peak_memory
from snnipu.training.ranks import Ranks

EVALUATION_BATCH = 256


class Trainer(TrainingLoop):
    """A training run on images: the network of ``config`` on ``data``, with Adam and snnTorch's ``ce_count_loss``.

    The score of a class is the number of spikes of its output neuron over the T steps. The loss is the cross entropy of
    these scores over all T steps. After the initial weights only the order of the batches is random, and it has its own
    generator. So the result depends only on ``config`` and the machine.

    Args:
        config: the settings.
        data: the images, all moved to ``device``.
        device: device of the training; None: the CPU.
        ranks: the processes that train the network together, see :func:`~snnipu.training.joined`; None: this one alone.
        accumulate: number of parts into which each process divides its share of a batch.
        checkpoint_steps: steps of a segment. Only the states between segments are stored for the backward pass, see
            :func:`snnipu.run_segments`. None: everything is stored.

    Attributes:
        network: the network; call it as ``spk, mem = network(x, num_steps=T)`` with ``x`` ``[B, features]``.
        history: one dict for each finished epoch: ``train_loss``, ``train_accuracy`` (while training),
            ``test_accuracy`` (fractions, 0 to 1), ``seconds`` (of training, without evaluation).

    Raises:
        ValueError: ``config.batch_size`` is larger than the training set; ``checkpoint_steps`` with another engine or
            rule.
    """

    unit = "images"
    network: nn.Sequential

    def __init__(
        self,
        config: TrainConfig,
        data: ImageData,
        device: Optional[torch.device] = None,
        ranks: Optional[Ranks] = None,
        accumulate: int = 1,
        checkpoint_steps: Optional[int] = None,
    ) -> None:
        if checkpoint_steps is not None:
            check_positive_int("checkpoint_steps", checkpoint_steps)
            if config.engine != "snnipu":
                raise ValueError(f"checkpoint_steps: only for the engine snnipu, not {config.engine}")
            if config.rule is not None:
                raise ValueError("checkpoint_steps: a rule of online learning keeps one chunk alone")
        description = {
            "name": data.name,
            "train_samples": len(data.train_labels),
            "test_samples": len(data.test_labels),
            "num_features": data.num_features,
            "num_classes": data.num_classes,
        }
        network = build_network(config, data.num_features, data.num_classes)
        super().__init__(config, network, description, device, ranks, accumulate)
        if config.rule is not None:
            self._online = OnlineSteps(self.network, config.rule)
        self.data = data
        self.checkpoint_steps = checkpoint_steps
        self.backend = "snntorch" if config.engine == "snntorch" else backend_for("lif_sequence", self.device)
        self._loss = ce_count_loss()
        self._train_x = data.train_images.flatten(1).to(self.device)
        self._train_y = data.train_labels.to(self.device)
        self._test_x = data.test_images.flatten(1).to(self.device)
        self._test_y = data.test_labels.to(self.device)

    def _batches(self, done: int) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(self.train_samples, generator=self._batch_order).to(self.device)
        for index in order.split(self.config.batch_size)[done:]:
            share = self._share(index)
            yield self._train_x[share], self._train_y[share]

    def _part(self, x: torch.Tensor, samples: slice) -> torch.Tensor:
        return x[samples]

    def _forward(self, x: torch.Tensor, labels: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        spk = self._spikes(x).float()  # bfloat16 cannot represent the sum of many spikes
        return self._loss(spk, labels), spk.detach().sum(0)

    def _chunks(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        steps, chunk = self.config.steps, self.config.chunk or self.config.steps
        for start in range(0, steps, chunk):
            yield x.expand(min(chunk, steps - start), *x.shape)

    def _spikes(self, x: torch.Tensor) -> torch.Tensor:
        steps, truncated = self.config.steps, self.config.bptt_steps
        if isinstance(self.network, MultiStep) and torch.is_grad_enabled() and (truncated or self.checkpoint_steps):
            segment = min(filter(None, (truncated, self.checkpoint_steps)))
            spk, _ = run_segments(
                self.network,
                x,
                segment,
                num_steps=steps,
                checkpoint=self.checkpoint_steps is not None,
                detach_every=truncated,
            )
        else:
            spk, _ = self.network(x, num_steps=steps)
        return spk

    def _test_batches(self) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        share = self.ranks.share(len(self._test_y))
        return zip(self._test_x[share].split(EVALUATION_BATCH), self._test_y[share].split(EVALUATION_BATCH))

    def _scores(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        return self._spikes(x).float().sum(0), torch.zeros(0, dtype=torch.int64)

    def spike_rates(self) -> Dict[str, float]:
        """Return the mean spikes per neuron and step of each spiking layer over the test set."""
        totals = [0.0, 0.0]
        for x in self._test_x.split(EVALUATION_BATCH):
            for layer, (spk, _) in enumerate(layer_activity(self.network, x, self.config.steps)):
                totals[layer] += float(spk.mean()) * len(x)
        return dict(zip(("hidden", "output"), (total / len(self._test_x) for total in totals)))

    # ---- output of `python -m snnipu train`

    def describe(self) -> str:
        """Return data, network and device in two lines."""
        data, config = self.data, self.config
        return (
            f"{data.name}: {len(data.train_labels):,} training and {len(data.test_labels):,} test images of "
            f"{'x'.join(map(str, data.image_shape))}\n"
            f"network: {data.num_features}-{config.hidden}-{data.num_classes}, T={config.steps}, "
            f"beta={config.beta:g}; device: {self.device}; neurons run by: {self.backend}{config.rule_in_words()}"
        )

    def multiplications(self) -> int:
        """Return the multiply-adds of the weights in the forward pass of a batch, a measure of the network's size."""
        config, data = self.config, self.data
        first, second = data.num_features * config.hidden, config.hidden * data.num_classes
        # The image is the same at every step: MultiStep computes the first layer once.
        return config.batch_size * (first * (1 if config.engine == "snnipu" else config.steps) + second * config.steps)

    def describe_epoch(self) -> str:
        """Return what the line of the last epoch shows in addition to loss and accuracies."""
        return "" if self._online is None else peak_memory()

    def results(self) -> Dict[str, Any]:
        """Return the entries of the report that only image runs have."""
        return {"spikes_per_neuron_and_step": self.spike_rates()}

    def figures(self) -> Dict[str, Any]:
        """Return figures of test images of three classes, and of the training."""
        from snnipu import plotting

        data, config = self.data, self.config
        chosen = [int((data.test_labels == label).nonzero()[0]) for label in data.test_labels.unique()[:3]]
        x = data.test_images[chosen].flatten(1).to(self.device)
        (hidden_spk, hidden_mem), (output_spk, output_mem) = layer_activity(self.network, x, config.steps)
        label = int(data.test_labels[chosen[0]])
        # Neurons that spike at about every fifth step show integration, threshold and reset best.
        neurons = (hidden_spk[:, 0].mean(0) - 0.2).abs().argsort()[:3]
        top_classes = output_mem[:, 0].sum(0).topk(4).indices.sort().values
        return {
            "raster": plotting.raster(data.test_images[chosen], data.test_labels[chosen], hidden_spk, output_spk),
            "membranes": plotting.membranes(
                torch.cat([hidden_mem[:, 0, neurons], output_mem[:, 0, top_classes]], dim=1),
                torch.cat([hidden_spk[:, 0, neurons], output_spk[:, 0, top_classes]], dim=1),
                names=[f"hidden {int(index)}" for index in neurons] + [f"class {int(index)}" for index in top_classes],
                title=f"membranes while a test image of a {label} is shown",
            ),
            "training": plotting.training_curve(self.history, title=f"{data.name}, {config.hidden} hidden neurons"),
        }
