"""snnTorch's neurons besides ``Leaky``, fused: :class:`~snnipu.neurons.fused.FusedNeuron` says what that means."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import snntorch
import torch
from snntorch._neurons import rleaky, rsynaptic
from torch import nn

from snnipu._layout import SINGLE_STEP
from snnipu._names.stock import stock
from snnipu.backends import popart
from snnipu.backends.neuron_step import shared_one
from snnipu.neurons._hooks import is_plain
from snnipu.neurons.fused import FusedNeuron, StepDescription
from snnipu.ops import step_operators
from snnipu.ops._arguments import is_autocast
from snnipu.ops.neuron_sequence import Results
from snnipu.ops.recurrent_sequence import STRENGTH, RecurrentConnection, recurrent_apply

_ONE_TO_ONE = (rleaky.RecurrentOneToOne, rsynaptic.RecurrentOneToOne)


class Synaptic(FusedNeuron, snntorch.Synaptic):
    """``snntorch.Synaptic``: second-order leaky integrate-and-fire, with a synaptic current in front of the membrane.

    Equation: ``snnipu.equations.synaptic``. States ``syn, mem``.
    """

    equation, options, stock = "synaptic", ("reset_mechanism", "reset_delay"), snntorch.Synaptic


class Alpha(FusedNeuron, snntorch.Alpha):
    """``snntorch.Alpha``: the membrane follows an alpha function, the difference of two synaptic currents.

    Equation: ``snnipu.equations.alpha``. States ``syn_exc, syn_inh, mem``.
    """

    equation, stock, has_long_step = "alpha", snntorch.Alpha, True


class Lapicque(FusedNeuron, snntorch.Lapicque):
    """``snntorch.Lapicque``: integrate-and-fire neurons of an RC circuit.

    Equation: ``snnipu.equations.lapicque``. State ``mem``.
    """

    equation, stock = "lapicque", snntorch.Lapicque


class _Recurrent(FusedNeuron):
    """One-to-one: ``V`` times a neuron's own last spike, fused over the sequence.

    All-to-all, through ``nn.Linear`` or ``nn.Conv2d``: products step by step, between them the fused step.
    """

    all_to_all: bool
    spk: Any

    def _base_state_function(self, input_: torch.Tensor) -> Any:
        if self.all_to_all and input_.dtype == torch.float64:  # snnTorch's spikes are float32
            self.spk = self.spk.to(input_.dtype)
        return super()._base_state_function(input_)

    def _fuses(self) -> bool:
        return super()._fuses() and self._recurs()

    def _recurs(self) -> bool:
        """Whether the recurrent layer is one that the kernels take."""
        recurrent = self._modules.get("recurrent")
        if recurrent is None or not is_plain(recurrent):
            return False
        if type(recurrent) in _ONE_TO_ONE:
            strength = getattr(recurrent, STRENGTH)
            if self.all_to_all or not isinstance(strength, torch.Tensor):
                return False
            return strength.dim() == 0 or strength.device == self.threshold.device
        if not self.all_to_all or popart.on_ipu_model() or popart.on_real_ipu():
            return False
        return self._connection() is not None and not is_autocast(self.threshold.device.type)

    def _direct_step(self, description: StepDescription, x: Any, given: Sequence[Any]) -> Any:
        return super()._direct_step(description, x, given) if self._recurs() else None

    def _into_step(self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]]) -> Sequence[Optional[torch.Tensor]]:
        return [self._come(x, states[0]), *states[1:]] if self.all_to_all else states

    def _step_values(self, x: torch.Tensor) -> Dict[str, Any]:
        values = self._values()
        return {**values, STRENGTH: shared_one(x.dtype, x.device)} if self.all_to_all else values

    def _come(self, x: torch.Tensor, spk: Optional[torch.Tensor]) -> torch.Tensor:
        """What comes of the spikes of the step before, all to all."""
        made: torch.Tensor = self.recurrent(torch.zeros_like(x) if spk is None else spk.to(x.dtype))
        return made

    def _connection(self) -> Optional[RecurrentConnection]:
        """The recurrent layer as the kernels take it."""
        layer = self._modules["recurrent"]
        if type(layer) is nn.Linear:
            return RecurrentConnection(layer.weight, layer.bias)
        if (
            type(layer) is not nn.Conv2d
            or layer.padding_mode != "zeros"
            or isinstance(layer.padding, str)
            or tuple(layer.stride) != (1, 1)
        ):
            return None
        return RecurrentConnection(layer.weight, layer.bias, (*layer.padding, *layer.dilation, layer.groups))

    def _values(self) -> Dict[str, Any]:
        # A fixed strength does not follow the layer's where that is moved or cast: snnTorch takes the connection's.
        return {
            name: getattr(self._modules["recurrent"] if name == STRENGTH else self, name)
            for name in self._parameters_of_equation()
            if not (self.all_to_all and name == STRENGTH)
        }

    def _leaf(self, x: torch.Tensor, states: Tuple[Optional[torch.Tensor], ...], why_not: str) -> Sequence[Any]:
        if not self.all_to_all:
            return super()._leaf(x, states, why_not)
        surrogate, values, connection = self._surrogate(), self._values(), self._connection()
        assert surrogate is not None
        assert surrogate.kernel is not None
        assert connection is not None
        return step_operators.recurrent_step(
            x,
            states,
            (*values.values(), connection.weight, connection.bias),
            surrogate.kernel.plain(),
            (self.equation, tuple(values), tuple(self._options().items()), tuple(connection.geometry)),
            why_not,
        )

    def _kernels(self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], **how: Any) -> Results:
        if not self.all_to_all or how.get("num_steps") == SINGLE_STEP:
            return super()._kernels(x, states, **how)
        connection = self._connection()
        assert connection is not None
        return recurrent_apply(
            self.equation,
            x,
            states,
            self._values(),
            connection,
            options=self._options(),
            spike_grad=self._surrogate(),
            **how,
        )


class RLeaky(_Recurrent, snntorch.RLeaky):
    """``snntorch.RLeaky``: ``Leaky`` with its output spikes as a further input.

    Equation: ``snnipu.equations.rleaky``. States ``spk, mem``.
    """

    equation, options, stock = "rleaky", ("reset_mechanism", "reset_delay"), snntorch.RLeaky


class RSynaptic(_Recurrent, snntorch.RSynaptic):
    """``snntorch.RSynaptic``: ``Synaptic`` with its output spikes as a further input.

    Equation: ``snnipu.equations.rsynaptic``. States ``spk, syn, mem``.
    """

    equation, stock = "rsynaptic", snntorch.RSynaptic

    def _reset_hidden(self) -> None:
        spk = self.spk
        super()._reset_hidden()
        self.spk = spk  # snnTorch's leaves the spikes as they are


_DeltaLeaky: Any = stock("DeltaLeaky")


class DeltaLeaky(FusedNeuron, _DeltaLeaky):
    """``snntorch.DeltaLeaky``: a spike where the membrane changed by more than ``delta_threshold``.

    Equation: ``snnipu.equations.delta_leaky``. States ``mem, mem_prev``; a step takes and returns them as one pair.
    """

    equation, options, stock = "delta_leaky", (), _DeltaLeaky
    parts = ()

    def _hidden(self, step_shape: torch.Size) -> List[Optional[torch.Tensor]]:
        # No step reads the earlier membrane: who detaches ``mem``, as ``detach_hidden`` does, is done with both.
        mem, mem_prev = super()._hidden(step_shape)
        return [mem, None if mem_prev is None else mem_prev.detach()]

    def _call(self, x: torch.Tensor, states: List[Any]) -> Any:
        spk, pair = self.forward(x) if self.init_hidden else self.forward(x, tuple(states))
        return (spk, *pair)

    def _returns_states(self) -> bool:
        return True

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        return _paired(super().over_time(x, num_steps=num_steps, need_mem=need_mem))

    def resume(
        self, x: torch.Tensor, states: Optional[Any], *, num_steps: Optional[int] = None, need_mem: bool = True
    ) -> Tuple[Any, Any]:
        out, final = super().resume(x, states, num_steps=num_steps, need_mem=need_mem)
        return _paired(out), final

    def forward(self, input_: torch.Tensor, mem: Any = None) -> Tuple[torch.Tensor, Any]:
        """One time step, as snnTorch's ``forward``."""
        return _DeltaLeaky.forward(self, input_, mem)


def _paired(out: Any) -> Any:
    """As a step returns them."""
    return (out[0], tuple(out[1:])) if isinstance(out, tuple) else out
