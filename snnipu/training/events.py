"""Training on events: a :class:`snnipu.SparseNetwork`, run by one of three methods."""

import itertools
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, RandomSampler, Sampler, Subset

from snnipu.backends import backend_for
from snnipu.datasets import EventData, event_loader
from snnipu.neurons import SparseNetwork
from snnipu.neurons.sparse_benchmark import benchmark_network
from snnipu.spikes import SparseSpikes
from snnipu.training.config import EventConfig
from snnipu.training.loop import TrainingLoop
from snnipu.training.low_activity import ActivityRegularizer, GradThresholdSchedule, LayerScale, scale_to_activity
from snnipu.training.methods import METHODS, Layers, Spikes, limited, num_spikes, overflow, spike_count
from snnipu.training.online import OnlineSteps, peak_memory
from snnipu.training.ranks import Ranks

# Assumed spikes per neuron and step, to estimate the work of the sparse methods.
_USUAL_ACTIVITY = 0.05


class EventTrainer(TrainingLoop):
    r"""A training run on events: a network of the published sparse benchmark's neurons, with Adam.

    The loss is the cross entropy of the output neurons' spike counts over the T steps,
    :math:`-\log \mathrm{softmax}(\sum_t s_t)_y`, plus a loss on rates above ``config.rate_limit``. Initial weights and
    order of the batches depend on ``config`` alone, not on the method. If no spikes are dropped and every neuron has a
    gradient, the three methods give the same curve up to rounding.

    Args:
        config: the settings.
        data: the recordings.
        device: device of the training; None: the CPU.
        workers: number of processes that read and bin recordings.
        ranks, accumulate: see :class:`Trainer`.

    Attributes:
        network: the :class:`snnipu.SparseNetwork`.
        scaling: the results of :func:`~snnipu.training.scale_to_activity` for the initial weights; empty before.
        history: one dict for each finished epoch. ``train_loss``, ``train_accuracy``, ``test_accuracy`` and ``seconds``
            are those of :class:`Trainer`. Over the test set: ``activity`` (mean spikes per neuron and step, one number
            a layer), ``overflow`` (spikes dropped, one number a layer), ``input_activity`` and ``input_overflow``.
            While training: ``train_overflow`` (of the input, then of each layer), and the final ``grad_threshold``.

    Raises:
        ValueError: ``config.batch_size`` is larger than the training set, or ``data`` has another number of steps; or
            ``config.rate_limit`` with several processes or parts of a batch, since it limits the mean of a whole batch.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """

    unit = "recordings"
    network: SparseNetwork

    def __init__(
        self,
        config: EventConfig,
        data: EventData,
        device: Optional[torch.device] = None,
        workers: int = 0,
        ranks: Optional[Ranks] = None,
        accumulate: int = 1,
    ) -> None:
        if data.num_steps != config.steps:
            raise ValueError(f"steps: {config.steps} of the settings are not the {data.num_steps} of the data")
        network = build_event_network(config, data)
        self.sizes = network.sizes
        description = {
            "name": data.name,
            "train_samples": len(data.train),
            "test_samples": len(data.test),
            "num_neurons": data.num_neurons,
            "num_classes": data.num_classes,
        }
        super().__init__(config, network, description, device, ranks, accumulate)
        if config.rate_limit is not None and (self.ranks.size > 1 or accumulate > 1):
            raise ValueError("rate_limit: only for one process without accumulate: it limits means over a whole batch")
        self.data = data
        self.backend = backend_for("lif_sequence", self.device)
        self.scaling: List[LayerScale] = []
        self._run = METHODS[config.method]
        if config.rule is not None and config.method == "sparse_network":
            self._online = OnlineSteps(network, config.rule)
        elif config.rule is not None:
            twin = network.to_dense()
            layers, parameters = list(network.layers), list(twin.parameters())
            assert len(parameters) == len(layers) == len(list(network.parameters()))  # weights, and nothing else
            scaled = [(layer.weight, weight, layer.input_scale) for layer, weight in zip(layers, parameters)]
            self._online = OnlineSteps(twin, config.rule, scaled)
        self._schedule: Optional[GradThresholdSchedule] = None
        if config.grad_threshold_start is not None:
            assert config.grad_threshold is not None
            assert config.grad_threshold_every is not None
            self._schedule = GradThresholdSchedule(
                torch.nn.ModuleList(self.network.layers[:-1]),
                config.grad_threshold_start,
                config.grad_threshold,
                config.grad_threshold_every,
            )
        self._regularizer: Optional[ActivityRegularizer] = None
        if config.rate_limit is not None:
            self._regularizer = ActivityRegularizer(upper=config.rate_limit, strength=config.rate_strength)
        order = RandomSampler(range(len(data.train)), generator=self._batch_order)
        self._shares = _Shares(BatchSampler(order, config.batch_size, drop_last=False), self._share)
        self._train_loader = event_loader(
            data.train,
            batch_sampler=self._shares,
            num_workers=workers,
        )
        # A separate generator for the seeds of workers: their number must not change the order of the batches.
        self._train_loader.generator = torch.Generator()
        share = self.ranks.share(len(data.test))
        test = data.test if self.ranks.size == 1 else Subset(data.test, range(share.start, share.stop))
        self._test_loader = event_loader(test, config.batch_size, num_workers=workers)
        self._num_counts = 2 * len(self.sizes)

    # ---- methods that the loop calls

    def _before_first_epoch(self) -> None:
        hidden, output = self.config.initial_activity, self.config.initial_output_activity
        if hidden is None or self.scaling:
            return
        target = [hidden] * self.config.num_hidden_layers + [hidden if output is None else output]
        generator = torch.Generator().manual_seed(self.config.seed)
        loader = event_loader(self.data.train, self.config.batch_size, shuffle=True, generator=generator)
        spikes, _ = next(iter(loader))
        try:
            self.scaling = scale_to_activity(self.network, spikes.to(self.device), target)
        except ValueError as error:
            raise ValueError(f"initial_activity: {error}") from error

    def _batches(self, done: int) -> Iterator[Tuple[SparseSpikes, torch.Tensor]]:
        self._shares.done = done
        return self._moved(self._train_loader)

    def _moved(self, loader: Iterable[Any]) -> Iterator[Tuple[SparseSpikes, torch.Tensor]]:
        for spikes, labels in loader:
            yield spikes.to(self.device), labels.to(self.device)

    def _part(self, x: SparseSpikes, samples: slice) -> SparseSpikes:
        return x[:, samples]

    def _forward(self, x: SparseSpikes, labels: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        layers, dropped, _ = self._layers(x)
        self._count(dropped)
        scores = _spike_counts(layers)
        loss = cross_entropy(scores, labels)
        if self._regularizer is not None:
            loss = loss + self._regularizer(layers[:-1])
        return loss, scores.detach()

    def _chunks(self, x: SparseSpikes) -> Iterator[Spikes]:
        length = self.config.chunk or self.config.steps
        for start in range(0, self.config.steps, length):
            chunk = x[start : start + length]
            if self.config.method == "dense":
                shape = self.data.sensor_shape if self.config.network == "conv" else None
                yield chunk.to_dense() if shape is None else chunk.to_dense().unflatten(2, shape)
                continue
            limited_chunk = limited(self.network, chunk)
            yield limited_chunk
            # The consumer has run the chunk when it requests the next one.
            self._count(torch.tensor([overflow(limited_chunk), *(self.network.overflow or ())]))

    def _count(self, dropped: torch.Tensor) -> None:
        if self._running is not None and self._counted:
            self._running.dropped += dropped

    def _layers(self, x: SparseSpikes) -> Tuple[Layers, torch.Tensor, torch.Tensor]:
        """Return the spikes of every layer, and the numbers of dropped and of stored spikes.

        The numbers are int64, of the input and of every layer.
        """
        inputs = x if self.config.method == "dense" else limited(self.network, x)
        layers = self._run(self.network, inputs)
        inputs_and_layers = [inputs, *layers]
        dropped, stored = (
            torch.tensor([count(part) for part in inputs_and_layers]) for count in (overflow, num_spikes)
        )
        return layers, dropped, stored

    def _after_step(self) -> None:
        if self._schedule is not None:
            self._schedule.step()

    def _test_batches(self) -> Iterator[Tuple[SparseSpikes, torch.Tensor]]:
        return self._moved(self._test_loader)

    def _scores(self, x: SparseSpikes) -> Tuple[torch.Tensor, torch.Tensor]:
        layers, dropped, stored = self._layers(x)
        return _spike_counts(layers), torch.cat([dropped, stored])

    def _test_record(self, counts: List[int]) -> Dict[str, Any]:
        dropped, stored = counts[: len(self.sizes)], counts[len(self.sizes) :]
        activity = [count / (self.test_samples * self.config.steps * size) for count, size in zip(stored, self.sizes)]
        return {
            "activity": activity[1:],
            "overflow": dropped[1:],
            "input_activity": activity[0],
            "input_overflow": dropped[0],
        }

    def _training_record(self, dropped: List[int]) -> Dict[str, Any]:
        grad_threshold = self._schedule.value if self._schedule is not None else self.config.grad_threshold
        return {"train_overflow": dropped, "grad_threshold": grad_threshold}

    def _extra_state(self) -> Dict[str, Any]:
        scaling = [tuple(scale) for scale in self.scaling]
        return {"schedule": None if self._schedule is None else self._schedule.state_dict(), "scaling": scaling}

    def _load_extra_state(self, state: Dict[str, Any]) -> None:
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
        self.scaling = [LayerScale(*scale) for scale in state["scaling"]]

    # ---- output of `python -m snnipu train`

    @property
    def layer_names(self) -> List[str]:
        """The names ``hidden 1``, ``hidden 2``, ..., ``output``."""
        return [f"hidden {index + 1}" for index in range(len(self.sizes) - 2)] + ["output"]

    @property
    def network_name(self) -> str:
        """The network as text, ``2312-1466-1466-10`` or ``2x34x34-12C5-MP2-32C5-MP2-FC10``."""
        if self.config.network == "fc":
            return "-".join(map(str, self.sizes))
        parts = [part if isinstance(part, str) else f"FC{part}" for part in (*self.config.hidden, self.sizes[-1])]
        return "-".join(["x".join(map(str, self.data.sensor_shape or ())), *parts])

    def describe(self) -> str:
        """Return data, network and device in a few lines."""
        data, config = self.data, self.config
        text = (
            f"{data.name}: {len(data.train):,} training and {len(data.test):,} test recordings of "
            f"{data.num_neurons:,} neurons, T={data.num_steps}\n"
            f"network: {self.network_name}, beta={config.beta:g}, delay {config.delay}; method: "
            f"{config.method}; device: {self.device}; layers run by: {self.backend}{config.rule_in_words()}"
        )
        if config.method != "dense":
            slots = ", ".join("as needed" if slot is None else str(slot) for slot in config.slots(self.sizes))
            second = "none: every neuron has a gradient"
            if config.grad_threshold is not None:
                second = f"{config.grad_threshold:g}"
                if config.grad_threshold_start is not None:
                    second += f", from {config.grad_threshold_start:g} on, halfway every {config.grad_threshold_every}"
            text += f"\nslots: {slots}; second threshold: {second}"
        folder = data.train.cache_folder
        return (
            text if folder is None else f"{text}\nbinned recordings are kept in {folder} (--no-cache: in memory only)"
        )

    def multiplications(self) -> int:
        """Return the multiply-adds of the weights in the forward pass of a batch, a measure of the network's size."""
        products = sum(neurons * layer.weight[0].numel() for neurons, layer in zip(self.sizes[1:], self.network.layers))
        share = 1 if self.config.method == "dense" else _USUAL_ACTIVITY
        return int(self.config.steps * self.config.batch_size * products * share)

    def describe_epoch(self) -> str:
        """Return what the line of the last epoch shows in addition to loss and accuracies."""
        record = self.history[-1]
        text = "activity " + " ".join(f"{100 * value:.2g}" for value in record["activity"]) + " %"
        dropped = sum(record["train_overflow"])
        text += "" if self._online is None else f", {peak_memory()}"
        return text + (f", {dropped:,} spikes dropped" if dropped else "")

    def results(self) -> Dict[str, Any]:
        """Return the entries of the report that only event runs have; before the first epoch its entries are None."""
        last = self.history[-1] if self.history else {}
        names = ("activity", "overflow", "input_activity", "input_overflow")
        totals = [record["train_overflow"] for record in self.history]
        return {
            **{name: last.get(name) for name in names},
            "train_overflow": [sum(column) for column in zip(*totals)] if totals else None,
            "sizes": self.sizes,
            "slots": list(self.config.slots(self.sizes)),
            "initial_scale": [scale.scale for scale in self.scaling],
        }

    @torch.no_grad()
    def figures(self) -> Dict[str, Any]:
        """Return figures of test recordings of three classes, and of the training."""
        from snnipu import plotting

        labels = self.data.test.labels
        chosen = [int((labels == label).nonzero()[0]) for label in labels.unique()[:3]]
        x, _ = self.data.test.batch(chosen)
        x = x.to(self.device)
        inputs = x if self.config.method == "dense" else limited(self.network, x)
        dense_layers = [
            part.to_dense() if isinstance(part, SparseSpikes) else part
            for part in [inputs, *self._run(self.network, inputs)]
        ]
        title = f"{self.data.name}, {self.network_name}, {self.config.method}"
        history = self.history
        slots = self.config.slots(self.sizes)[1:]
        return {
            "raster": plotting.layer_rasters(dense_layers, labels[chosen], ["input", *self.layer_names]),
            "training": plotting.training_curve(history, title=title),
            "activity": plotting.activity_curve(
                [record["activity"] for record in history],
                self.layer_names,
                caps=[None if slot is None else min(slot / size, 1) for slot, size in zip(slots, self.sizes[1:])],
                dropped=None if self.config.method == "dense" else [record["overflow"] for record in history],
                cells=[len(self.data.test) * self.config.steps * size for size in self.sizes[1:]],
                title=title,
            ),
        }


class _Shares(Sampler[List[int]]):
    """The samples of this process in each batch after the first ``done``."""

    done = 0

    def __init__(self, batches: BatchSampler, share: Callable[[List[int]], List[int]]) -> None:
        self._all, self._share = batches, share

    def __iter__(self) -> Iterator[List[int]]:
        return map(self._share, itertools.islice(self._all, self.done, None))

    def __len__(self) -> int:
        return len(self._all) - self.done


def _spike_counts(layers: Layers) -> torch.Tensor:
    out = layers[-1]
    # bfloat16 cannot represent the sum of many spikes.
    return spike_count(out.float() if isinstance(out, torch.Tensor) else out)


def build_event_network(config: EventConfig, data: EventData) -> SparseNetwork:
    """Return the network of ``config``; its weights depend on ``config.seed`` alone and are equal for every method.

    Raises:
        ValueError: ``config.hidden`` does not suit the maps of ``data``, or ``data`` has no maps.
    """
    inputs = data.num_neurons if config.network == "fc" else data.sensor_shape
    if inputs is None:
        raise ValueError(f"network: expected fc for {data.name}, got {config.network}: it has no maps")
    sizes = [inputs, *config.hidden, data.num_classes]
    try:
        neurons = SparseNetwork(sizes, beta=config.beta).sizes if config.network == "conv" else sizes
        return benchmark_network(
            sizes,
            max_spikes=config.slots(neurons),
            decay=config.beta,
            grad_threshold=[config.grad_threshold] * config.num_hidden_layers + [None],
            delay=config.delay,
            overflow=config.overflow_order,
            generator=torch.Generator().manual_seed(config.seed),
        )
    except ValueError as error:
        before, prefix, reason = str(error).partition("sizes: ")
        if prefix and not before:
            raise ValueError(f"hidden: {reason}") from error
        raise
