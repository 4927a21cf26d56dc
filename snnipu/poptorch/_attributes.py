"""Plain attributes of modules, which are constants in a compiled graph.

PopTorch traces ``forward`` once. A tensor that ``forward`` stores in an attribute (``self.mem = 0.9 * self.mem + x``)
belongs to that trace: every call starts from the attribute's value at compile time. Only buffers and parameters keep
their values between calls. The host runs ``forward`` for every micro-batch, and restores the attributes before each
run.
"""

from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from snnipu.neurons.fused import FusedNeuron
from snnipu.poptorch._logging import logger

# Modules of these packages are left alone: they manage their caches and states; see ``replaces_state_buffers``.
_LIBRARIES = ("torch.", "snntorch.", "snnipu.")
_CONTAINERS = (list, dict, set)
# Attributes of every module, which the wrapper handles.
_MODULE_PARTS = frozenset(torch.nn.Module().__dict__)


def replaces_state_buffers(module: torch.nn.Module) -> bool:
    """Return True for a neuron of snnTorch or snnipu: each step replaces the buffers that hold its state."""
    return any(base.__module__.startswith(("snntorch.", "snnipu.")) for base in type(module).__mro__)


def _tensors(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    elements = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
    return [element for element in elements if isinstance(element, torch.Tensor)]


def _elements(value: Any) -> List[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)


def _same_elements(left: Any, right: Any) -> bool:
    first, second = _elements(left), _elements(right)
    return len(first) == len(second) and all(a is b for a, b in zip(first, second))


class _SavedAttribute:
    """The value of one attribute: the object, a container's elements, and the values and versions of its tensors."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.content: Any = value.copy() if isinstance(value, _CONTAINERS) else None
        self.tensors = [(tensor, tensor.detach().clone()) for tensor in _tensors(value)]
        self.note()

    def note(self) -> None:
        self.versions = [tensor._version for tensor, _ in self.tensors]

    def changed_in_place(self) -> bool:
        """Return True if a tensor was written to, or was added to or removed from a container."""
        if any(tensor._version != version for (tensor, _), version in zip(self.tensors, self.versions)):
            return True
        return self.content is not None and (
            not _same_elements(self.value, self.content) and bool(_tensors(self.value) or _tensors(self.content))
        )

    def restore(self) -> None:
        if isinstance(self.value, list):
            self.value[:] = self.content
        elif self.content is not None:
            self.value.clear()
            self.value.update(self.content)
        with torch.no_grad():
            for tensor, saved in self.tensors:
                tensor.copy_(saved)
        self.note()


def _states(neuron: torch.nn.Module) -> Dict[str, Any]:
    """Return a neuron's buffers and states; fused neurons keep their states in plain attributes."""
    names = neuron._states() if isinstance(neuron, FusedNeuron) else ()
    return {**neuron._buffers, **{name: neuron.__dict__[name] for name in names}}


class CompiledAttributes:
    """The attributes that a model's modules had when it was compiled."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules: List[Tuple[str, torch.nn.Module]] = [
            (name, module)
            for name, module in model.named_modules()
            if name == "" or not type(module).__module__.startswith(_LIBRARIES)
        ]
        self._neurons: List[Tuple[str, torch.nn.Module, Dict[str, Any]]] = [
            (name, module, _states(module)) for name, module in model.named_modules() if replaces_state_buffers(module)
        ]
        self._saved: List[Dict[str, _SavedAttribute]] = [
            {name: _SavedAttribute(value) for name, value in attributes.items()} for attributes in self._attributes()
        ]
        self._after_call: Optional[List[Dict[str, Any]]] = None
        self._warned: Set[str] = set()

    def _attributes(self) -> List[Dict[str, Any]]:
        return [
            {name: value for name, value in module.__dict__.items() if name not in _MODULE_PARTS}
            for _, module in self._modules
        ]

    def before_call(self) -> None:
        """Adopt the attributes that the user changed since the last call, as the next call on the host uses them."""
        for saved, before, now in zip(self._saved, self._after_call or (), self._attributes()):
            for name, value in now.items():
                if name not in before or value is not before[name]:
                    saved[name] = _SavedAttribute(value)
            for name in before.keys() - now.keys():
                saved.pop(name, None)
        self._after_call = None

    def after_call(self) -> None:
        self._after_call = self._attributes()

    def restore(self) -> None:
        """Restore every attribute before a run of ``forward``; warn of each tensor that the last run left."""
        for (path, module), saved, now in zip(self._modules, self._saved, self._attributes()):
            for name, value in now.items():
                if name not in saved:
                    self._warn(path, name, value)
                    del module.__dict__[name]
            for name, attribute in saved.items():
                if name not in now or now[name] is not attribute.value or attribute.changed_in_place():
                    self._warn(path, name, now.get(name), attribute.value)
                    module.__dict__[name] = attribute.value
                    attribute.restore()
        for path, neuron, states in self._neurons:
            replaced = [name for name, state in states.items() if getattr(neuron, name, None) is not state]
            if replaced:
                for name in replaced:
                    (neuron._buffers if name in neuron._buffers else neuron.__dict__)[name] = states[name]
                if getattr(neuron, "init_hidden", False):
                    self._warn_once(
                        path or type(neuron).__name__,
                        "%s keeps its state (%s) with init_hidden=True: every run of forward starts from its value "
                        "when the model was compiled, and PopTorch refuses to replace a buffer. Pass the state from "
                        "step to step (init_hidden=False), or run all steps in one call (snnipu.MultiStep).",
                        ", ".join(replaced),
                    )

    def _warn(self, path: str, name: str, *values: Any) -> None:
        if not any(map(_tensors, values)):
            return
        self._warn_once(
            f"{path}.{name}" if path else name,
            "forward leaves a tensor in the attribute %s, which a compiled graph does not carry on: every run "
            "starts from the value it had when the model was compiled. For a state that lasts, call "
            "register_buffer(%r, tensor) in __init__ and change it in place: self.%s.copy_(new_values).",
            name,
            name,
        )

    def _warn_once(self, path: str, message: str, *arguments: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            logger.warning(message, path, *arguments)
