"""Execution strategies: the IPU and the time at which each block of a model runs.

The host runs the blocks in the order of the code with every strategy. It follows a strategy far enough to raise the
errors that IPUs would raise.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from snnipu.poptorch._errors import (
    Error,
    InvalidArgument,
    InvalidType,
    check_bool,
    check_enum,
    check_int,
    check_str,
    check_type,
)
from snnipu.poptorch._logging import logger
from snnipu.poptorch._options_base import OptionsDict
from snnipu.poptorch.enums import AutoStage, Liveness


class Stage:
    """A group of blocks that run on one IPU (PopTorch user guide, "Parallel execution").

    Args:
        block_ids: the ids of the blocks.
    """

    def __init__(self, *block_ids: str) -> None:
        for block_id in block_ids:
            check_str(block_id, "Stage: block_ids")
        self._blocks = block_ids
        self._stage_id = -1
        self._phase_id = -1
        self._ipu: Optional[int] = None

    @property
    def blocks(self) -> Tuple[str, ...]:
        """The ids of the blocks of this stage."""
        return self._blocks

    def ipu(self, ipu: int) -> "Stage":
        """Run this stage on IPU number ``ipu``; returns self."""
        self._ipu = check_int(ipu, "Stage.ipu")
        return self


class Phase:
    """Stages that run in parallel.

    Args:
        arg: stages, or block ids, which form one stage.
    """

    def __init__(self, *arg: Union[str, Stage]) -> None:
        stages = [element for element in arg if isinstance(element, Stage)]
        blocks = [element for element in arg if isinstance(element, str)]
        if len(arg) not in (len(stages), len(blocks)):
            raise InvalidType(f"Phase: expected only stages or only block ids, got {[type(e).__name__ for e in arg]}")
        self.stages = [Stage(*blocks)] if blocks else stages

    def stage(self, idx: int) -> Stage:
        """Return the stage at position ``idx``."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> None:
        """Assign an IPU to each stage.

        Args:
            ipus: one number per stage; any other count raises ``poptorch.Error``.
        """
        if len(ipus) != len(self.stages):
            raise InvalidArgument(f"Phase.ipus: the phase has {len(self.stages)} stages, got {len(ipus)} ipus")
        for stage, ipu in zip(self.stages, ipus):
            stage.ipu(ipu)


class StageManager:
    """A recorder of the blocks that one run of a model enters."""

    def __init__(self, blocks: Optional[Dict[str, Stage]], auto_stage: AutoStage) -> None:
        self._explicit = blocks
        self._auto_stage = auto_stage
        self.reset()

    def reset(self) -> None:
        self._entered: Dict[str, Stage] = {}
        self._next_auto_id = 0
        self._ended = False
        self._ipu = 0
        self.ipu_switches = 0
        self.ipus = {0}
        self.warnings: List[str] = []

    def resetAutoId(self) -> None:
        self._next_auto_id = 0

    def nextAutoId(self) -> str:
        self._next_auto_id += 1
        return str(self._next_auto_id - 1)

    def beginStage(self, user_id: Optional[str], ipu_id: Optional[int]) -> Stage:
        block = user_id if user_id is not None else self.nextAutoId()
        if self._explicit is not None and block not in self._explicit:
            raise InvalidArgument(f"Block: {block!r} is in no stage of the execution strategy: {list(self._explicit)}")
        if block not in self._entered:
            self._entered[block] = self._explicit[block] if self._explicit is not None else self._new(block, ipu_id)
        self._enter(self._entered[block])
        return self._entered[block]

    def _enter(self, stage: Stage) -> None:
        ipu = stage._ipu if stage._ipu is not None else max(stage._stage_id, 0)
        if len(self._entered) == 1:
            self.ipus = set()
        elif ipu != self._ipu:
            self.ipu_switches += 1
        self.ipus.add(ipu)
        self._ipu, self._ended = ipu, False

    def endStage(self) -> None:
        self._ended = True

    def in_block(self) -> bool:
        """Return True if operations belong to a block now; a model without blocks counts as one block."""
        return not self._ended

    def _new(self, block: str, ipu_id: Optional[int]) -> Stage:
        stage = Stage(block)
        stage._stage_id = len(self._entered)
        if self._auto_stage == AutoStage.SameAsIpu:
            if ipu_id is None:
                raise InvalidArgument(
                    f"poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for block {block}: give the "
                    "block an ipu_id, or choose PipelinedExecution(AutoStage.AutoIncrement)"
                )
            stage._stage_id = ipu_id
        stage._ipu = ipu_id
        return stage

    def entered_any(self) -> bool:
        return bool(self._entered)


_MAX_IPUS = 64  # in one process


class _IExecutionStrategy:
    """The base class of the strategies that ``Options.setExecutionStrategy`` accepts."""

    _pipelined = False
    _execution_mode = 0  # PopTorch's number of the strategy

    def __init__(self, blocks: Dict[str, Stage], auto_stage: AutoStage = AutoStage.SameAsIpu) -> None:
        self._block_map = blocks
        self._manager = StageManager(blocks or None, auto_stage)

    def stage(self, block_id: str) -> Stage:
        """Return the stage of a block.

        Args:
            block_id: the block's id; a block that is in no stage raises ``poptorch.Error``.
        """
        if block_id not in self._block_map:
            raise InvalidArgument(f"stage: unknown block {block_id!r}; known: {list(self._block_map)}")
        return self._block_map[block_id]

    def backendOptions(self) -> Dict[str, Any]:
        return {"execution_mode": self._execution_mode}

    def _start_run(self) -> StageManager:
        self._manager.reset()
        return self._manager

    def _check_run(self, options: OptionsDict, training: bool) -> None:
        """Check the blocks that a run entered: raise ``poptorch.Error`` if IPUs could not run them, or warn."""
        manager = self._manager
        if self._pipelined and self._block_map and not manager.entered_any():
            raise Error(
                f"{type(self).__name__}: forward enters none of the blocks {list(self._block_map)}. Mark layers with "
                "poptorch.Block or poptorch.BeginBlock."
            )
        ipus = max(len(manager.ipus), max(manager.ipus, default=0) + 1) * options.replication_factor
        if ipus > _MAX_IPUS:
            raise Error(
                f"Too many IPUs requested ({ipus}): the model's blocks are on IPUs {sorted(manager.ipus)} with "
                f"{options.replication_factor} replicas. Experiments that need more than {_MAX_IPUS} IPUs require "
                "distributed execution."
            )
        forward = manager.ipu_switches + 1
        if self._pipelined and training and options.Training.gradient_accumulation < 2 * forward - 1:
            raise Error(
                "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of "
                f"pipeline stages ({2 * forward - 1}) when using poptorch.PipelinedExecution. Please note that a model "
                f"with {forward} pipeline stages in PopTorch will have an additional {forward - 1} stages when "
                f"training. It is {options.Training.gradient_accumulation}."
            )
        if self._pipelined and not training and options.device_iterations < forward:
            raise Error(
                "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline stages "
                f"({forward}) when using PopTorch.PipelinedExecution. It is {options.device_iterations}."
            )
        rounded = 1 << (ipus - 1).bit_length()
        if rounded != ipus and not options.auto_round_num_ipus:
            manager.warnings.append(
                f"The model needs {ipus} IPUs, and PopTorch reserves a power of 2, here {rounded}. "
                "Options.autoRoundNumIPUs(True) allows that"
            )
        for warning in manager.warnings:
            logger.warning("%s; the host runs the model nevertheless.", warning)


def _collect(stages: Sequence[Stage]) -> Dict[str, Stage]:
    blocks: Dict[str, Stage] = {}
    for stage in stages:
        for block in stage.blocks:
            if block in blocks:
                raise InvalidArgument(f"execution strategy: block {block!r} is in more than one stage")
            blocks[block] = stage
    return blocks


class PipelinedExecution(_IExecutionStrategy):
    """A pipeline of stages, for instance ``PipelinedExecution("A", Stage("B", "C"))``.

    Args:
        args: one entry per stage: a block id, a :class:`Stage` or a list of block ids. Or one :class:`AutoStage`, by
            which each block becomes a stage.
    """

    _pipelined = True

    def __init__(self, *args: Union[str, Stage, Sequence[str], AutoStage]) -> None:
        auto_stage = AutoStage.SameAsIpu
        stages: List[Stage] = []
        if len(args) == 1 and isinstance(args[0], AutoStage):
            auto_stage = args[0]
        else:
            for number, arg in enumerate(args):
                kinds = (Stage, str, list, tuple)
                part: Any = check_type(arg, type(self).__name__, kinds, "block ids, stages or one AutoStage")
                stage = part if isinstance(part, Stage) else Stage(*([part] if isinstance(part, str) else part))
                stage._stage_id = number
                stages.append(stage)
        super().__init__(_collect(stages), auto_stage)


class ShardedExecution(PipelinedExecution):
    """Stages that run one after another, each on its IPU. Takes the arguments of :class:`PipelinedExecution`."""

    _pipelined = False
    _execution_mode = 1


class _IPhasedExecution(_IExecutionStrategy):
    """The base class of strategies in which blocks run in phases.

    Args:
        phases: one entry per phase: a :class:`Phase`, a block id, or a list of stages or block ids. Or one list of
            such entries.
    """

    _execution_mode = 2
    _serial = False

    def __init__(self, *phases: Union[Phase, str, Sequence[Any]]) -> None:
        self._phases: List[Phase] = []
        for phase in self._phases_of(phases):
            parts = phase if isinstance(phase, Phase) else Phase(*(phase if isinstance(phase, list) else [phase]))
            for stage in parts.stages:
                stage._phase_id = len(self._phases)
            self._phases.append(parts)
        if not self._phases:
            raise InvalidArgument(f"{type(self).__name__}: expected at least one phase; there is no automatic choice")
        self._tensors_liveness = Liveness.AlwaysLive
        self._separate_backward_phase = False
        stages = [stage for phase in self._phases for stage in phase.stages]
        super().__init__(_collect(stages))

    @staticmethod
    def _phases_of(phases: Sequence[Any]) -> Sequence[Any]:
        # The user guide's examples pass a single list of phases.
        only = phases[0] if len(phases) == 1 and isinstance(phases[0], (list, tuple)) else []
        return only if only and all(isinstance(phase, (Phase, list, tuple)) for phase in only) else phases

    def phase(self, phase: int) -> Phase:
        """Return the phase at position ``phase``."""
        return self._phases[check_int(phase, "phase")]

    def useSeparateBackwardPhase(self, use: bool = True) -> "_IPhasedExecution":
        """Give the backward pass its own phases; returns self.

        Args:
            use: False: forward and backward pass share phases.
        """
        self._separate_backward_phase = check_bool(use, "useSeparateBackwardPhase")
        return self

    def backendOptions(self) -> Dict[str, Any]:
        return {
            **super().backendOptions(),
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._tensors_liveness.value,
            "serial_phases_execution": self._serial,
        }


class ParallelPhasedExecution(_IPhasedExecution):
    """Phases that alternate between two groups of IPUs."""

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> "ParallelPhasedExecution":
        """Store tensors off chip between forward and backward pass; returns self.

        Args:
            off_chip: False: keep them on chip.
        """
        check_bool(off_chip, "sendTensorsOffChipAfterFwd")
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self


class SerialPhasedExecution(_IPhasedExecution):
    """Phases that run one after another on one group of IPUs."""

    _serial = True

    def setTensorsLiveness(self, liveness: Liveness) -> "SerialPhasedExecution":
        """Choose the memory that holds tensors between phases; returns self.

        Args:
            liveness: a member of :class:`Liveness`.
        """
        self._tensors_liveness = check_enum(liveness, "setTensorsLiveness", Liveness)
        return self
