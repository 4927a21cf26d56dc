"""The training loop: epochs that are finished or did not happen."""

import copy
import math
import time
from typing import Any, Callable, Dict, List, Optional

import torch
from snntorch.functional import ce_count_loss
from tqdm import tqdm

from snnipu.datasets import ImageData
from snnipu.training.checkpoint import CheckpointError, check_same_run
from snnipu.training.config import TrainConfig
from snnipu.training.network import build_network, layer_activity

EVALUATION_BATCH = 256


class DivergedError(ArithmeticError):
    """The loss is not finite any more."""


class Stopped(Exception):
    """Raised inside an epoch when the caller asks for a stop; never leaves this module."""


class Trainer:
    """Trains the network of ``config`` on ``data`` with Adam and snnTorch's ``ce_count_loss``.

    A class's score is the number of spikes of its output neuron over the T steps; the loss is the cross entropy of
    these scores, which sees all T steps in one call. The order of the batches is the only random thing after the
    initial weights; it comes from a generator of its own, so the outcome depends on ``config`` (and the machine) alone.

    Args:
        config: the settings.
        data: the images; they are moved to ``device`` as a whole.
        device: where to train.

    Attributes:
        network: the network; call it as ``spk, mem = network(x, num_steps=T)`` with ``x`` ``[B, features]``.
        history: one dict a finished epoch: ``train_loss``, ``train_accuracy`` (while training), ``test_accuracy``
            (fractions, 0 to 1), ``seconds`` (of training, evaluation excluded).

    Raises:
        ValueError: ``config.batch_size`` is larger than the training set.
    """

    def __init__(self, config: TrainConfig, data: ImageData, device: Optional[torch.device] = None) -> None:
        samples = len(data.train_labels)
        if config.batch_size > samples:
            raise ValueError(
                f"batch_size: {config.batch_size} is larger than the training set of {data.name}, {samples} images"
            )
        self.config = config
        self.data = data
        self.device = torch.device("cpu") if device is None else device
        self.network = build_network(config, data.num_features, data.num_classes).to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr)
        self.history: List[Dict[str, float]] = []
        self._loss = ce_count_loss()
        self._batch_order = torch.Generator().manual_seed(config.seed)
        self._train_x = data.train_images.flatten(1).to(self.device)
        self._train_y = data.train_labels.to(self.device)
        self._test_x = data.test_images.flatten(1).to(self.device)
        self._test_y = data.test_labels.to(self.device)

    def fit(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        on_epoch: Optional[Callable[["Trainer"], object]] = None,
        progress: bool = False,
    ) -> bool:
        """Train until ``config.epochs`` epochs are done.

        An epoch that does not finish, whatever ended it, is taken back: weights, optimizer and batch order are again
        those of the last finished epoch.

        Args:
            should_stop: asked between batches; true ends the training.
            on_epoch: called with this trainer after every finished epoch.
            progress: show a progress bar where standard error is a terminal.

        Returns:
            True when all epochs are done, False after a stop.

        Raises:
            DivergedError: the loss became infinite or NaN.
        """
        while len(self.history) < self.config.epochs:
            finished = copy.deepcopy(self.state_dict())
            try:
                record = self._run_epoch(should_stop, progress)
            except BaseException as error:
                self.load_state_dict(finished)
                if isinstance(error, Stopped):
                    return False
                raise
            self.history.append(record)
            if on_epoch is not None:
                on_epoch(self)
        return True

    def _run_epoch(self, should_stop: Callable[[], bool], progress: bool) -> Dict[str, float]:
        samples = len(self._train_y)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * self.config.lr_decay ** len(self.history)
        loss_sum = torch.zeros((), device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        started = self._clock()
        order = torch.randperm(samples, generator=self._batch_order).to(self.device)
        with tqdm(
            total=samples,
            desc=f"epoch {len(self.history) + 1}/{self.config.epochs}",
            unit=" images",
            leave=False,
            disable=None if progress else True,
        ) as bar:
            for index in order.split(self.config.batch_size):
                if should_stop():
                    raise Stopped
                labels = self._train_y[index]
                spk, _ = self.network(self._train_x[index], num_steps=self.config.steps)
                loss = self._loss(spk, labels)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                loss_sum += loss.detach() * len(index)
                correct += (spk.detach().sum(0).argmax(1) == labels).sum()
                bar.update(len(index))
        seconds = self._clock() - started
        train_loss = loss_sum.item() / samples
        if not math.isfinite(train_loss):
            raise DivergedError(f"the loss is {train_loss} in epoch {len(self.history) + 1}; a smaller lr may help")
        return {
            "train_loss": train_loss,
            "train_accuracy": correct.item() / samples,
            "test_accuracy": self.evaluate(should_stop),
            "seconds": seconds,
        }

    @torch.no_grad()
    def evaluate(self, should_stop: Callable[[], bool] = lambda: False) -> float:
        """Accuracy on the test set, 0 to 1."""
        correct = 0
        for x, labels in zip(self._test_x.split(EVALUATION_BATCH), self._test_y.split(EVALUATION_BATCH)):
            if should_stop():
                raise Stopped
            spk, _ = self.network(x, num_steps=self.config.steps)
            correct += int((spk.sum(0).argmax(1) == labels).sum())
        return correct / len(self._test_y)

    def spike_rates(self) -> Dict[str, float]:
        """Mean spikes per neuron and step of each spiking layer over the test set."""
        totals = [0.0, 0.0]
        for x in self._test_x.split(EVALUATION_BATCH):
            for layer, (spk, _) in enumerate(layer_activity(self.network, x, self.config.steps)):
                totals[layer] += float(spk.mean()) * len(x)
        return dict(zip(("hidden", "output"), (total / len(self._test_x) for total in totals)))

    def samples_per_second(self) -> Optional[float]:
        """Training images per second over the finished epochs, evaluation excluded; None before the first."""
        seconds = sum(record["seconds"] for record in self.history)
        return len(self.history) * len(self._train_y) / seconds if self.history else None

    def state_dict(self) -> Dict[str, Any]:
        """All that a later :meth:`load_state_dict` needs to go on exactly as if nothing had happened."""
        return {
            "config": self.config.to_dict(),
            "data": self._describe_data(),
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": {"batch_order": self._batch_order.get_state()},
            "history": list(self.history),
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from ``state``, which may come from a run that had fewer ``epochs`` set, and from another device.

        Raises:
            CheckpointError: ``state`` is of another network, data set or schedule, or is damaged.
        """
        check_same_run(state["config"], self.config.to_dict())
        check_same_run(state["data"], self._describe_data())
        if len(state["history"]) > self.config.epochs:
            raise CheckpointError(
                f"the checkpoint has {len(state['history'])} epochs behind it, more than epochs={self.config.epochs}"
            )
        try:
            history = [{name: float(record[name]) for name in HISTORY_ENTRIES} for record in state["history"]]
            self.network.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self._batch_order.set_state(state["rng"]["batch_order"])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error
        self.history = history

    def _describe_data(self) -> Dict[str, Any]:
        return {
            "name": self.data.name,
            "train_samples": len(self.data.train_labels),
            "test_samples": len(self.data.test_labels),
            "num_features": self.data.num_features,
            "num_classes": self.data.num_classes,
        }

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


HISTORY_ENTRIES = ("train_loss", "train_accuracy", "test_accuracy", "seconds")


def backend_name(engine: str, device: torch.device) -> str:
    """Which code runs the neurons: a backend of ``lif_sequence``, or ``"snntorch"`` for snnTorch's own."""
    if engine == "snntorch":
        return "snntorch"
    from snnipu.backends import backend_for

    name: str = backend_for("lif_sequence", device)
    return name
