"""The training loop: epochs that finish or are undone, and checkpoints between epochs or batches."""

import contextlib
import copy
import math
import time
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from torch import nn
from tqdm import tqdm

from snnipu.training.checkpoint import CheckpointError, check_same_run
from snnipu.training.config import check_positive_int
from snnipu.training.online import OnlineSteps
from snnipu.training.ranks import Ranks


class DivergedError(ArithmeticError):
    """The loss or a weight is not finite."""


class Stopped(Exception):
    """A stop was requested within an epoch; raised and caught inside this package."""


Never: Callable[[], bool] = lambda: False  # noqa: E731


@dataclass
class _EpochProgress:
    """An epoch in progress: the state of the batch order before it, and its sums so far."""

    order: torch.Tensor
    loss: torch.Tensor
    correct: torch.Tensor
    dropped: torch.Tensor  # dropped spikes of the input and of each layer that has slots
    batches: int = 0
    seconds: float = 0.0


class _Step(nn.Module):
    """Loss and scores of a part of a batch, as the single module that DistributedDataParallel wraps."""

    def __init__(self, network: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.network = network
        self._run = forward
        # Buffers are equal in all processes, or hold states of one process.
        self._ddp_params_and_buffers_to_ignore = [f"network.{name}" for name, _ in network.named_buffers()]

    def forward(self, x: Any, labels: torch.Tensor) -> Any:
        return self._run(x, labels)


class TrainingLoop:
    """The common part of all runs: Adam, epochs, checkpoints and stops. Subclasses define the batches.

    Args:
        config: settings, with ``epochs``, ``batch_size``, ``lr``, ``lr_decay``, ``seed`` and ``to_dict()``.
        network: the module to train, moved to ``device``.
        description: the properties of the data set that a checkpoint stores and compares: ``name``, ``train_samples``,
            ``test_samples`` and others.
        device: device of the training; None: the CPU.
        ranks: the processes that train the network together, each with its share of every batch; None: this one alone.
        accumulate: number of parts into which each process divides its share of a batch, computed one after the other.

    Attributes:
        network: the network.
        history: one dict for each finished epoch.
        silent: share of the test samples without a spike of the output layer, from 0 to 1, in the last epoch of this
            process.
        train_samples, test_samples: sizes of the two sets.

    Raises:
        ValueError: ``config.batch_size`` is larger than the training set.
    """

    # The name of a sample in the progress bar and in messages.
    unit = "samples"

    def __init__(
        self,
        config: Any,
        network: nn.Module,
        description: Dict[str, Any],
        device: Optional[torch.device],
        ranks: Optional[Ranks] = None,
        accumulate: int = 1,
    ) -> None:
        check_positive_int("accumulate", accumulate)
        self.ranks = Ranks() if ranks is None else ranks
        self.accumulate = accumulate
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
        self.silent = 0.0
        # Set for a rule of online learning; None for backpropagation through time.
        self._online: Optional[OnlineSteps] = None
        if config.rule is not None and self.ranks.size > 1:
            raise ValueError("rule: only for one process: gradients are there after each chunk")
        self._description = description
        self._counted = True
        self._num_counts = 0
        self._batch_order = torch.Generator().manual_seed(config.seed)
        self._running: Optional[_EpochProgress] = None

    # ---- methods of subclasses

    def _batches(self, done: int) -> Iterable[Tuple[Any, torch.Tensor]]:
        """Yield inputs and labels: this process's share of each training batch after the first ``done``.

        The order of the samples comes from ``self._batch_order``; see :meth:`_share`.
        """
        raise NotImplementedError

    def _part(self, x: Any, samples: slice) -> Any:
        """Return some samples of an input."""
        raise NotImplementedError

    def _forward(self, x: Any, labels: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return the mean loss of the samples, and scores ``[B, classes]`` without a gradient.

        Statistics must ignore the samples unless ``self._counted``.
        """
        raise NotImplementedError

    def _chunks(self, x: Any) -> Iterator[Any]:
        """Yield an input in chunks of ``config.chunk`` steps, dense or sparse, for a rule of online learning."""
        raise NotImplementedError

    def _test_batches(self) -> Iterable[Tuple[Any, torch.Tensor]]:
        """Yield inputs and labels of this process's share of the test set."""
        raise NotImplementedError

    def _scores(self, x: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return scores ``[B, classes]`` of test samples, and ``self._num_counts`` integers to sum over the set."""
        raise NotImplementedError

    def _test_record(self, counts: List[int]) -> Dict[str, Any]:
        """Return the entries of an epoch's record for these sums."""
        return {}

    def _before_first_epoch(self) -> None:
        """Prepare the network before the first batch of a run that does not resume from a checkpoint."""

    def _after_step(self) -> None:
        """Update the subclass after a step of the optimizer."""

    def _training_record(self, dropped: List[int]) -> Dict[str, Any]:
        """Return further entries of an epoch's record about the training."""
        return {}

    def _extra_state(self) -> Dict[str, Any]:
        """Return further entries of the ``state_dict``."""
        return {}

    def _load_extra_state(self, state: Dict[str, Any]) -> None:
        """Load the entries of :meth:`_extra_state`."""

    # ---- epochs

    def fit(
        self,
        should_stop: Callable[[], bool] = Never,
        on_epoch: Optional[Callable[[Any], object]] = None,
        progress: bool = False,
        on_batches: Optional[Callable[[Any], object]] = None,
        every: int = 1,
    ) -> bool:
        """Train until ``config.epochs`` epochs are done.

        An epoch that does not finish is undone: weights, optimizer and batch order return to the last finished epoch,
        or to a loaded state from the middle of this epoch.

        Args:
            should_stop: called between batches; training stops if it returns True.
            on_epoch: called with this trainer after every finished epoch.
            progress: show a progress bar if standard error is a terminal.
            on_batches: called with this trainer after every ``every`` batches of an epoch, and when a stop ends the
                epoch. Training can resume from its :meth:`state_dict` at that time.
            every: number of batches between calls of ``on_batches``.

        Returns:
            True if all epochs are done, False after a stop.

        Raises:
            DivergedError: the loss became infinite or NaN.
            ValueError: ``on_batches`` with more than one process; ``every`` is below 1.
        """
        check_positive_int("every", every)
        if on_batches is not None and self.ranks.size > 1:
            raise ValueError("on_batches: only for one process: the first step of an epoch is another there")
        if not self.history and self._running is None:
            self._before_first_epoch()
        while len(self.history) < self.config.epochs:
            finished = copy.deepcopy(self.state_dict())
            try:
                record = self._run_epoch(should_stop, progress, on_batches, every)
            except BaseException as error:
                self._apply(finished)
                if isinstance(error, Stopped):
                    return False
                raise
            self.history.append(record)
            if on_epoch is not None:
                on_epoch(self)
        return True

    def _run_epoch(
        self,
        should_stop: Callable[[], bool],
        progress: bool,
        on_batches: Optional[Callable[[Any], object]],
        every: int,
    ) -> Dict[str, Any]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * self.config.lr_decay ** len(self.history)
        if self._running is None:
            loss, correct = torch.zeros((), device=self.device), torch.zeros((), dtype=torch.int64, device=self.device)
            dropped = torch.zeros(self._num_counts // 2, dtype=torch.int64)
            self._running = _EpochProgress(self._batch_order.get_state(), loss, correct, dropped)
        running = self._running
        # A new wrapper for each epoch: gradients are then reduced in the same order after a resume, too.
        model = self.ranks.wrapped(_Step(self.network, self._forward))
        first, started = running.batches, self._clock() - running.seconds
        with tqdm(
            total=self.train_samples,
            initial=min(first * self.config.batch_size, self.train_samples),
            desc=f"epoch {len(self.history) + 1}/{self.config.epochs}",
            unit=f" {self.unit}",
            leave=False,
            disable=None if progress and self.ranks.is_first else True,
        ) as bar:
            for index, (x, labels) in enumerate(self._batches(first), first):
                stops = self.ranks.any(should_stop())
                if on_batches is not None and index > first and (stops or index % every == 0):
                    self._check_finite(running.loss.item())
                    running.seconds = self._clock() - started
                    on_batches(self)
                if stops:
                    raise Stopped
                batch = self._batch_size(index)
                self.optimizer.zero_grad(set_to_none=True)
                for loss, scores, share_labels in self._backward(model, x, labels, batch):
                    running.loss += loss * len(share_labels)
                    running.correct += (scores.argmax(1) == share_labels).sum()
                self.optimizer.step()
                self._after_step()
                running.batches = index + 1
                bar.update(batch)
        running.seconds = self._clock() - started
        train_loss = self.ranks.sum(running.loss).item() / self.train_samples
        self._check_finite(train_loss)
        try:
            evaluated = self._evaluation(should_stop)
        except Stopped:
            if on_batches is not None:
                on_batches(self)
            raise
        self._running = None
        return {
            "train_loss": train_loss,
            "train_accuracy": self.ranks.sum(running.correct).item() / self.train_samples,
            **evaluated,
            "seconds": running.seconds,
            **self._training_record(self.ranks.sum(running.dropped).tolist()),
        }

    def _check_finite(self, loss: float) -> None:
        """Check that loss, weights and optimizer are finite."""
        epoch = len(self.history) + 1
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss} in epoch {epoch}; a smaller lr may help")
        # Weights are checked as well: a checkpoint must not contain non-finite numbers.
        if self.ranks.any(not self._is_finite()):
            raise DivergedError(f"weights or moments of Adam are not finite in epoch {epoch}; a smaller lr may help")

    def _backward(
        self, model: nn.Module, x: Any, labels: torch.Tensor, batch: int
    ) -> Iterable[Tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Run forward and backward on this process's share of a batch; yield loss, scores and labels of each part.

        The gradient is that of the mean over all ``batch`` samples. DistributedDataParallel averages over processes,
        whose shares may differ by a sample. A process without a share runs one sample with weight zero.
        """
        share = self.ranks.share(batch)
        self._counted = counted = share.stop > share.start
        parts = min(self.accumulate, len(labels))
        bounds = [len(labels) * part // parts for part in range(parts + 1)]
        for part, samples in enumerate(map(slice, bounds, bounds[1:])):
            part_labels = labels[samples]
            # Gradients are reduced once, after the last part.
            waits = part < parts - 1 and self.ranks.size > 1
            with model.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
                weight = self.ranks.size * len(part_labels) / batch if counted else 0.0
                loss, scores = self._learn(model, x if parts == 1 else self._part(x, samples), part_labels, weight)
            if counted:
                yield loss.detach(), scores, part_labels

    def _learn(
        self, model: nn.Module, x: Any, labels: torch.Tensor, weight: float
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Run forward and backward on ``weight`` times the loss; return the loss and the scores."""
        if self._online is not None:
            return self._online.learn(self._chunks(x), self.config.steps, labels, weight)
        with self._autocast():
            loss, scores = model(x, labels)
        (loss if weight == 1 else loss * weight).backward()
        return loss, scores

    def _batch_size(self, index: int) -> int:
        """Return the number of samples of a batch, over all processes."""
        return min(self.config.batch_size, self.train_samples - index * self.config.batch_size)

    def _share(self, indices: Any) -> Any:
        """Return this process's share of a batch's samples; the first sample if the share is empty."""
        share = indices[self.ranks.share(len(indices))]
        return share if len(share) else indices[:1]

    def _autocast(self) -> ContextManager[Any]:
        if self.config.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def _evaluation(self, should_stop: Callable[[], bool]) -> Dict[str, Any]:
        """Evaluate the test set; raise Stopped in all processes if one of them stops."""
        correct, silent, stopped, counts = 0, 0, False, torch.zeros(self._num_counts, dtype=torch.int64)
        for x, labels in self._test_batches():
            stopped = should_stop()
            if stopped or not len(labels):
                break
            with self._autocast():
                scores, batch_counts = self._scores(x)
            correct += int((scores.argmax(1) == labels).sum())
            silent += int((scores == 0).all(1).sum())
            counts += batch_counts
        totals = self.ranks.sum(torch.tensor([int(stopped), correct, silent, *counts.tolist()])).tolist()
        stops, correct, silent, *summed = totals
        if stops:
            raise Stopped
        self.silent = silent / self.test_samples
        return {"test_accuracy": correct / self.test_samples, **self._test_record(summed)}

    def samples_per_second(self) -> Optional[float]:
        """Return training samples per second over the finished epochs, without evaluation; None before the first."""
        seconds = sum(record["seconds"] for record in self.history)
        return len(self.history) * self.train_samples / seconds if self.history else None

    # ---- state

    @property
    def batches(self) -> int:
        """Number of finished batches of an epoch in progress, else 0."""
        return 0 if self._running is None else self._running.batches

    def state_dict(self) -> Dict[str, Any]:
        """Return everything that :meth:`load_state_dict` needs to resume exactly."""
        running: Dict[str, Any] = {}
        order = self._batch_order.get_state()
        if self._running is not None:
            running = {**vars(self._running), "dropped": self._running.dropped.tolist()}
            order = running.pop("order")
        return {
            "config": self.config.to_dict(),
            "data": dict(self._description),
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": {"batch_order": order},
            "history": list(self.history),
            "running": running,
            **self._extra_state(),
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Resume from ``state``, which may come from a run with fewer ``epochs`` or on another device.

        If loading fails, the trainer is unchanged.

        Args:
            state: the result of :meth:`state_dict`.

        Raises:
            CheckpointError: ``state`` belongs to another network, data set or schedule, or is damaged.
        """
        before = copy.deepcopy(self.state_dict())
        try:
            check_same_run(type(self.config)(**state["config"]).to_dict(), self.config.to_dict())
            check_same_run(state["data"], self._description)
            if len(state["history"]) > self.config.epochs:
                raise CheckpointError(
                    f"the checkpoint has {len(state['history'])} finished epochs, more than epochs={self.config.epochs}"
                )
            if state["running"] and self.ranks.size > 1:
                raise CheckpointError("the checkpoint is of an epoch under way, which goes on in one process")
            self._apply(state)
        except CheckpointError:
            raise
        except Exception as error:  # wrong entries raise errors of many types in PyTorch
            self._apply(before)
            raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error

    def _apply(self, state: Dict[str, Any]) -> None:
        self._load_extra_state(state)
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        order, running = state["rng"]["batch_order"], state["running"]
        self._batch_order.set_state(order)
        self.history = [dict(record) for record in state["history"]]
        self._running = None
        if running:
            loss, correct = (running[name].to(self.device, copy=True) for name in ("loss", "correct"))
            dropped = torch.tensor(running.get("dropped", []), dtype=torch.int64)
            self._running = _EpochProgress(order, loss, correct, dropped, running["batches"], running["seconds"])

    def _is_finite(self) -> bool:
        tensors = list(self.network.parameters())
        for state in self.optimizer.state.values():
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
