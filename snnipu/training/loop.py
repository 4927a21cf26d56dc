"""The training loop: epochs that are finished or did not happen."""

import copy
import math
import time
from typing import Any, Callable, ClassVar, Dict, Iterable, List, Optional, Tuple

import torch
from torch import nn
from tqdm import tqdm

from snnipu.training.checkpoint import (
    CheckpointError,
    check_generator,
    check_model,
    check_optimizer,
    check_same_run,
)


class DivergedError(ArithmeticError):
    """The loss is not finite any more."""


class Stopped(Exception):
    """Raised inside an epoch when the caller asks for a stop; never leaves this package."""


Never: Callable[[], bool] = lambda: False  # noqa: E731


def number(low: float = -math.inf, high: float = math.inf) -> Callable[[Any], float]:
    """Reads a finite number from ``low`` to ``high``; anything else is a ValueError."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"expected a finite number, got {value!r}")
        if not low <= value <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}, got {value!r}")
        return float(value)

    return read


# What an entry of a record is read with: a damaged checkpoint must not put anything else there.
HISTORY_ENTRIES: Dict[str, Callable[[Any], Any]] = {
    "train_loss": number(),
    "train_accuracy": number(0, 1),
    "test_accuracy": number(0, 1),
    "seconds": number(low=0),
}


class TrainingLoop:
    """Adam, epochs, checkpoints, stops: what every run has in common. What a batch is, a subclass tells.

    Args:
        config: settings, with ``epochs``, ``batch_size``, ``lr``, ``lr_decay``, ``seed`` and ``to_dict()``.
        network: the module to train; it is moved to ``device``.
        description: of the data set, by which a checkpoint knows it again: ``name``, ``train_samples``,
            ``test_samples`` and what else counts.
        device: where to train; None: the CPU.

    Attributes:
        network: the network.
        history: one dict a finished epoch, with the entries of ``self.entries``.
        train_samples, test_samples: sizes of the two sets.

    Raises:
        ValueError: ``config.batch_size`` is larger than the training set.
    """

    # What a progress bar and messages call a sample.
    unit = "samples"
    entries: ClassVar[Dict[str, Callable[[Any], Any]]] = HISTORY_ENTRIES

    def __init__(
        self,
        config: Any,
        network: nn.Module,
        description: Dict[str, Any],
        device: Optional[torch.device],
    ) -> None:
        self.train_samples: int = description["train_samples"]
        self.test_samples: int = description["test_samples"]
        if config.batch_size > self.train_samples:
            raise ValueError(
                f"batch_size: {config.batch_size} is larger than the training set of {description['name']}, "
                f"{self.train_samples} {self.unit}"
            )
        self.config = config
        self.device = torch.device("cpu") if device is None else device
        self.network: Any = network.to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr)
        self.history: List[Dict[str, Any]] = []
        self._description = description
        self._batch_order = torch.Generator().manual_seed(config.seed)

    # ---- what a subclass tells

    def _batches(self) -> Iterable[Tuple[Any, torch.Tensor]]:
        """The training set in an order drawn from ``self._batch_order``: inputs and labels."""
        raise NotImplementedError

    def _forward(self, x: Any, labels: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Loss of a training batch, and scores ``[B, classes]`` without a gradient."""
        raise NotImplementedError

    def _evaluation(self, should_stop: Callable[[], bool]) -> Dict[str, Any]:
        """``test_accuracy``, and what else the record of an epoch has to say about the test set."""
        raise NotImplementedError

    def _before_first_epoch(self) -> None:
        """Called once, before the first batch of a run that does not go on from a checkpoint."""

    def _before_epoch(self) -> None:
        """Called before the first batch of each epoch."""

    def _after_step(self) -> None:
        """Called after each step of the optimizer."""

    def _training_record(self) -> Dict[str, Any]:
        """What else the record of an epoch has to say about the training."""
        return {}

    def _more_state(self) -> Dict[str, Any]:
        """Further entries of the ``state_dict``."""
        return {}

    def _load_more_state(self, state: Dict[str, Any]) -> None:
        """The inverse of :meth:`_more_state`."""

    # ---- epochs

    def fit(
        self,
        should_stop: Callable[[], bool] = Never,
        on_epoch: Optional[Callable[[Any], object]] = None,
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
        if not self.history:
            self._before_first_epoch()
        while len(self.history) < self.config.epochs:
            finished = copy.deepcopy(self.state_dict())
            try:
                record = self._run_epoch(should_stop, progress)
            except BaseException as error:
                self._restore(finished)
                if isinstance(error, Stopped):
                    return False
                raise
            self.history.append(record)
            if on_epoch is not None:
                on_epoch(self)
        return True

    def _run_epoch(self, should_stop: Callable[[], bool], progress: bool) -> Dict[str, Any]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * self.config.lr_decay ** len(self.history)
        self._before_epoch()
        loss_sum = torch.zeros((), device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        started = self._clock()
        with tqdm(
            total=self.train_samples,
            desc=f"epoch {len(self.history) + 1}/{self.config.epochs}",
            unit=f" {self.unit}",
            leave=False,
            disable=None if progress else True,
        ) as bar:
            for x, labels in self._batches():
                if should_stop():
                    raise Stopped
                loss, scores = self._forward(x, labels)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                self._after_step()
                loss_sum += loss.detach() * len(labels)
                correct += (scores.argmax(1) == labels).sum()
                bar.update(len(labels))
        seconds = self._clock() - started
        train_loss = loss_sum.item() / self.train_samples
        if not math.isfinite(train_loss):
            raise DivergedError(f"the loss is {train_loss} in epoch {len(self.history) + 1}; a smaller lr may help")
        # After the last step, too: nothing can go on from such a checkpoint.
        if not self._is_finite():
            raise DivergedError(
                f"weights or moments of Adam are not finite after epoch {len(self.history) + 1}; a smaller lr may help"
            )
        return {
            "train_loss": train_loss,
            "train_accuracy": correct.item() / self.train_samples,
            **self._evaluation(should_stop),
            "seconds": seconds,
            **self._training_record(),
        }

    def evaluate(self, should_stop: Callable[[], bool] = Never) -> float:
        """Accuracy on the test set, 0 to 1."""
        accuracy: float = self._evaluation(should_stop)["test_accuracy"]
        return accuracy

    def samples_per_second(self) -> Optional[float]:
        """Training samples per second over the finished epochs, evaluation excluded; None before the first."""
        seconds = sum(record["seconds"] for record in self.history)
        return len(self.history) * self.train_samples / seconds if self.history else None

    # ---- state

    def state_dict(self) -> Dict[str, Any]:
        """All that a later :meth:`load_state_dict` needs to go on exactly as if nothing had happened."""
        return {
            "config": self.config.to_dict(),
            "data": dict(self._description),
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": {"batch_order": self._batch_order.get_state()},
            "history": list(self.history),
            **self._more_state(),
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from ``state``, which may come from a run that had fewer ``epochs`` set, and from another device.

        All of it is checked first: an error leaves the trainer as it was.

        Raises:
            CheckpointError: ``state`` is of another network, data set or schedule, or is damaged.
        """
        check_same_run(state["config"], self.config.to_dict())
        check_same_run(state["data"], self._description)
        if len(state["history"]) > self.config.epochs:
            raise CheckpointError(
                f"the checkpoint has {len(state['history'])} epochs behind it, more than epochs={self.config.epochs}"
            )
        try:
            history = [self._read_record(index, record) for index, record in enumerate(state["history"])]
            check_model(state["model"], self.network.state_dict())
            optimizer = check_optimizer(state["optimizer"], self.optimizer, trained=bool(history))
            order = check_generator(state["rng"]["batch_order"], self._batch_order)
            self._load_more_state({**state, "history": history})
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise CheckpointError(f"the checkpoint is damaged: {what}") from error
        self._apply(state["model"], optimizer, order, history)

    def _read_record(self, index: int, record: Dict[str, Any]) -> Dict[str, Any]:
        read = {}
        for name, entry in self.entries.items():
            try:
                read[name] = entry(record[name])
            except ValueError as error:
                raise ValueError(f"history: {name} of epoch {index + 1}: {error}") from error
        return read

    def _restore(self, state: Dict[str, Any]) -> None:
        """Go back to an own state, which need not be checked, and whatever it holds is better than half an epoch."""
        self._load_more_state(state)
        self._apply(state["model"], state["optimizer"], state["rng"]["batch_order"], state["history"])

    def _apply(
        self, model: Dict[str, Any], optimizer: Dict[str, Any], order: torch.Tensor, history: List[Dict[str, Any]]
    ) -> None:
        self.network.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self._batch_order.set_state(order)
        self.history = history

    def _is_finite(self) -> bool:
        tensors = list(self.network.parameters())
        for state in self.optimizer.state.values():
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
