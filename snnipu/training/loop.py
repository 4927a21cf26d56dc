"""The training loop: epochs that are finished or did not happen, and checkpoints after them or between batches."""

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
    """The loss is not finite any more."""


class Stopped(Exception):
    """Raised inside an epoch when the caller asks for a stop; never leaves this package."""


Never: Callable[[], bool] = lambda: False  # noqa: E731


@dataclass
class _Running:
    """An epoch under way: the batch order's state before it, and its sums so far."""

    order: torch.Tensor
    loss: torch.Tensor
    correct: torch.Tensor
    dropped: torch.Tensor  # spikes, of the input and of each layer, where there are slots
    batches: int = 0
    seconds: float = 0.0


class _Step(nn.Module):
    """Loss and scores of a part of a batch as one module: what DistributedDataParallel is to see."""

    def __init__(self, network: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.network = network
        self._run = forward
        # They are the same in all processes, or one process's states.
        self._ddp_params_and_buffers_to_ignore = [f"network.{name}" for name, _ in network.named_buffers()]

    def forward(self, x: Any, labels: torch.Tensor) -> Any:
        return self._run(x, labels)


class TrainingLoop:
    """Adam, epochs, checkpoints, stops: what every run has in common. What a batch is, a subclass tells.

    Args:
        config: settings, with ``epochs``, ``batch_size``, ``lr``, ``lr_decay``, ``seed`` and ``to_dict()``.
        network: the module to train; it is moved to ``device``.
        description: of the data set, by which a checkpoint knows it again: ``name``, ``train_samples``,
            ``test_samples`` and what else counts.
        device: where to train; None: the CPU.
        ranks: the processes that train the network together, each with its share of every batch; None: this one alone.
        accumulate: parts that each process's share of a batch is computed in, one after the other.

    Attributes:
        network: the network.
        history: one dict a finished epoch.
        train_samples, test_samples: sizes of the two sets.

    Raises:
        ValueError: ``config.batch_size`` is larger than the training set.
    """

    # What a progress bar and messages call a sample.
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
        # None: backpropagation through time.
        self._online: Optional[OnlineSteps] = None
        if config.rule is not None and self.ranks.size > 1:
            raise ValueError("rule: only for one process: gradients are there after each chunk")
        self._description = description
        self._counted = True
        self._num_counts = 0
        self._batch_order = torch.Generator().manual_seed(config.seed)
        self._running: Optional[_Running] = None

    # ---- what a subclass tells

    def _batches(self, done: int) -> Iterable[Tuple[Any, torch.Tensor]]:
        """This process's shares of the training set's batches, :meth:`_own`, drawn from ``self._batch_order``, without
        the first ``done``: inputs and labels."""
        raise NotImplementedError

    def _part(self, x: Any, samples: slice) -> Any:
        """Some samples of an input."""
        raise NotImplementedError

    def _forward(self, x: Any, labels: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Mean loss of the samples, and scores ``[B, classes]`` without a gradient.

        Unless ``self._counted``, the samples are to be in no statistics.
        """
        raise NotImplementedError

    def _chunks(self, x: Any) -> Iterator[Any]:
        """An input in chunks of ``config.chunk`` steps, dense or spikes, where a rule of online learning trains."""
        raise NotImplementedError

    def _test_batches(self) -> Iterable[Tuple[Any, torch.Tensor]]:
        """This process's share of the test set: inputs and labels."""
        raise NotImplementedError

    def _scores(self, x: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        """Scores ``[B, classes]`` of test samples, and ``self._num_counts`` whole numbers to be summed over them."""
        raise NotImplementedError

    def _test_record(self, counts: List[int]) -> Dict[str, Any]:
        """Entries of an epoch's record for these sums."""
        return {}

    def _before_first_epoch(self) -> None:
        """Called once, before the first batch of a run that does not go on from a checkpoint."""

    def _after_step(self) -> None:
        """Called after each step of the optimizer."""

    def _training_record(self, dropped: List[int]) -> Dict[str, Any]:
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
        on_batches: Optional[Callable[[Any], object]] = None,
        every: int = 1,
    ) -> bool:
        """Train until ``config.epochs`` epochs are done.

        An epoch that does not finish, whatever ended it, is taken back: weights, optimizer and batch order are again
        those of the last finished epoch, or of the state that was loaded where that was in the middle of this one.

        Args:
            should_stop: asked between batches; true ends the training.
            on_epoch: called with this trainer after every finished epoch.
            progress: show a progress bar where standard error is a terminal.
            on_batches: called with this trainer after every ``every`` batches of an epoch, and where a stop ends one;
                its :meth:`state_dict` then goes on from there.

        Returns:
            True when all epochs are done, False after a stop.

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
            self._running = _Running(self._batch_order.get_state(), loss, correct, dropped)
        running = self._running
        # Made anew: the first step of each epoch reduces the gradients in the same order, after a resume, too.
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
                for loss, scores, own in self._backward(model, x, labels, batch):
                    running.loss += loss * len(own)
                    running.correct += (scores.argmax(1) == own).sum()
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
        """Raise where nothing can go on from the present state."""
        epoch = len(self.history) + 1
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss} in epoch {epoch}; a smaller lr may help")
        # After a step, too: no checkpoint is to have them.
        if self.ranks.any(not self._is_finite()):
            raise DivergedError(f"weights or moments of Adam are not finite in epoch {epoch}; a smaller lr may help")

    def _backward(
        self, model: nn.Module, x: Any, labels: torch.Tensor, batch: int
    ) -> Iterable[Tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Forward and backward pass of this process's share of a batch; loss, scores and labels of each of its parts.

        The gradient is that of the mean over all ``batch`` samples: DistributedDataParallel averages over processes,
        and their shares may differ by a sample. A process without a share has one sample, which counts for nothing.
        """
        self._counted = counted = self._own_size(batch) > 0
        parts = min(self.accumulate, len(labels))
        bounds = [len(labels) * part // parts for part in range(parts + 1)]
        for part, samples in enumerate(map(slice, bounds, bounds[1:])):
            own = labels[samples]
            # Gradients are reduced once, with those of the last part.
            waits = part < parts - 1 and self.ranks.size > 1
            with model.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
                weight = self.ranks.size * len(own) / batch if counted else 0.0
                loss, scores = self._learn(model, x if parts == 1 else self._part(x, samples), own, weight)
            if counted:
                yield loss.detach(), scores, own

    def _learn(
        self, model: nn.Module, x: Any, labels: torch.Tensor, weight: float
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Forward and backward pass of ``weight`` times the loss; the loss, and the scores."""
        if self._online is not None:
            return self._online.learn(self._chunks(x), self.config.steps, labels, weight)
        with self._autocast():
            loss, scores = model(x, labels)
        (loss if weight == 1 else loss * weight).backward()
        return loss, scores

    def _batch_size(self, index: int) -> int:
        """Samples of a batch, over all processes."""
        return min(self.config.batch_size, self.train_samples - index * self.config.batch_size)

    def _own_size(self, batch: int) -> int:
        own = self.ranks.share(batch)
        return int(own.stop - own.start)

    def _own(self, indices: Any) -> Any:
        """This process's share of a batch's samples; the first of them where there are fewer than processes."""
        own = indices[self.ranks.share(len(indices))]
        return own if len(own) else indices[:1]

    def _autocast(self) -> ContextManager[Any]:
        if self.config.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def _evaluation(self, should_stop: Callable[[], bool]) -> Dict[str, Any]:
        """Evaluate the test set; raises Stopped in all processes where one of them stops."""
        correct, stopped, counts = 0, False, torch.zeros(self._num_counts, dtype=torch.int64)
        for x, labels in self._test_batches():
            stopped = should_stop()
            if stopped or not len(labels):
                break
            with self._autocast():
                scores, more = self._scores(x)
            correct += int((scores.argmax(1) == labels).sum())
            counts += more
        stops, correct, *summed = self.ranks.sum(torch.tensor([int(stopped), correct, *counts.tolist()])).tolist()
        if stops:
            raise Stopped
        return {"test_accuracy": correct / self.test_samples, **self._test_record(summed)}

    def samples_per_second(self) -> Optional[float]:
        """Training samples per second over the finished epochs, evaluation excluded; None before the first."""
        seconds = sum(record["seconds"] for record in self.history)
        return len(self.history) * self.train_samples / seconds if self.history else None

    # ---- state

    @property
    def batches(self) -> int:
        """Batches of an epoch under way that are done, else 0."""
        return 0 if self._running is None else self._running.batches

    def state_dict(self) -> Dict[str, Any]:
        """All that a later :meth:`load_state_dict` needs to go on exactly as if nothing had happened."""
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
            **self._more_state(),
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from ``state``, which may come from a run that had fewer ``epochs`` set, and from another device.

        An error leaves the trainer as it was.

        Raises:
            CheckpointError: ``state`` is of another network, data set or schedule, or is damaged.
        """
        before = copy.deepcopy(self.state_dict())
        try:
            check_same_run(type(self.config)(**state["config"]).to_dict(), self.config.to_dict())
            check_same_run(state["data"], self._description)
            if len(state["history"]) > self.config.epochs:
                raise CheckpointError(
                    f"the checkpoint has {len(state['history'])} epochs behind it, more than "
                    f"epochs={self.config.epochs}"
                )
            if state["running"] and self.ranks.size > 1:
                raise CheckpointError("the checkpoint is of an epoch under way, which goes on in one process")
            self._apply(state)
        except CheckpointError:
            raise
        except Exception as error:  # entries that do not fit fail anywhere in PyTorch
            self._apply(before)
            raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error

    def _apply(self, state: Dict[str, Any]) -> None:
        self._load_more_state(state)
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        order, running = state["rng"]["batch_order"], state["running"]
        self._batch_order.set_state(order)
        self.history = [dict(record) for record in state["history"]]
        self._running = None
        if running:
            loss, correct = (running[name].to(self.device, copy=True) for name in ("loss", "correct"))
            dropped = torch.tensor(running.get("dropped", []), dtype=torch.int64)
            self._running = _Running(order, loss, correct, dropped, running["batches"], running["seconds"])

    def _is_finite(self) -> bool:
        tensors = list(self.network.parameters())
        for state in self.optimizer.state.values():
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
