"""What modules keep in plain attributes, as a compiled graph sees it: constants.

PopTorch traces ``forward`` once. A tensor that ``forward`` leaves in an attribute (``self.mem = 0.9 * self.mem + x``)
is part of that trace, and the next call starts from the attribute's value at compile time again; only buffers and
parameters carry on. Here ``forward`` runs for every micro-batch, and each run starts from those values.
"""

from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from snnipu.neurons.fused import FusedNeuron
from snnipu.poptorch._logging import logger

# Modules of these packages keep caches and states by their own rules; see ``keeps_own_state``.
_LIBRARIES = ("torch.", "snntorch.", "snnipu.")
_CONTAINERS = (list, dict, set)
# Handled by the wrapper itself.
_MODULE_PARTS = frozenset(torch.nn.Module().__dict__)


def keeps_own_state(module: torch.nn.Module) -> bool:
    """Whether it is a neuron of snnTorch or snnipu, which replaces the buffers that hold its state."""
    return any(base.__module__.startswith(("snntorch.", "snnipu.")) for base in type(module).__mro__)


def _tensors(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    elements = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
    return [element for element in elements if isinstance(element, torch.Tensor)]


def _elements(value: Any) -> List[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)


def _same_elements(one: Any, other: Any) -> bool:
    left, right = _elements(one), _elements(other)
    return len(left) == len(right) and all(a is b for a, b in zip(left, right))


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)


class _Held:
    """One attribute: the object, a container's elements, and the values and versions of its tensors."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.content = value.copy() if isinstance(value, _CONTAINERS) else None
        self.tensors = [(tensor, tensor.detach().clone()) for tensor in _tensors(value)]
        self.note()

    def note(self) -> None:
        self.versions = [tensor._version for tensor, _ in self.tensors]

    def in_place(self) -> bool:
        """Whether a tensor was written into, or one was put into or taken out of a container."""
        if any(tensor._version != version for (tensor, _), version in zip(self.tensors, self.versions)):
            return True
        return self.content is not None and (
            not _same_elements(self.value, self.content) and bool(_tensors(self.value) or _tensors(self.content))
        )

    def restore(self) -> None:
        if self.content is not None and not _same_elements(self.value, self.content):
            _refill(self.value, self.content)
        with torch.no_grad():
            for tensor, saved in self.tensors:
                tensor.copy_(saved)
        self.note()


def _states(neuron: torch.nn.Module) -> Dict[str, Any]:
    """Buffers, and the states of ours, which are none."""
    names = neuron._states() if isinstance(neuron, FusedNeuron) else ()
    return {**neuron._buffers, **{name: neuron.__dict__[name] for name in names}}


class CompiledAttributes:
    """The attributes of a model's modules as they were when it was compiled."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules: List[Tuple[str, torch.nn.Module]] = [
            (name, module)
            for name, module in model.named_modules()
            if name == "" or not type(module).__module__.startswith(_LIBRARIES)
        ]
        self._neurons: List[Tuple[str, torch.nn.Module, Dict[str, Any]]] = [
            (name, module, _states(module)) for name, module in model.named_modules() if keeps_own_state(module)
        ]
        self._held: List[Dict[str, _Held]] = [self._hold(module) for _, module in self._modules]
        self._left: Optional[List[Dict[str, Any]]] = None
        self._warned: Set[str] = set()

    @staticmethod
    def _hold(module: torch.nn.Module) -> Dict[str, _Held]:
        return {name: _Held(value) for name, value in module.__dict__.items() if name not in _MODULE_PARTS}

    def before_call(self) -> None:
        """What was changed from outside since the last call counts: a host has no graph that would not see it."""
        if self._left is None:
            return
        for (_, module), held, left in zip(self._modules, self._held, self._left):
            own = module.__dict__
            for name in [name for name in own if name not in _MODULE_PARTS]:
                if name not in left or own[name] is not left[name]:
                    held[name] = _Held(own[name])
            for name in [name for name in held if name not in own and name in left]:
                del held[name]
        self._left = None

    def after_call(self) -> None:
        self._left = [
            {name: value for name, value in module.__dict__.items() if name not in _MODULE_PARTS}
            for _, module in self._modules
        ]

    def restore(self) -> None:
        """Before each run of ``forward``: every attribute as it was."""
        for (path, module), held in zip(self._modules, self._held):
            own = module.__dict__
            for name, attribute in held.items():
                value = own.get(name, attribute)
                if value is not attribute.value:
                    self._warn(path, name, value, attribute.value)
                    own[name] = attribute.value
                if attribute.in_place():
                    self._warn(path, name, attribute.value, attribute.value)
                    attribute.restore()
            if len(own) != len(held) + len(_MODULE_PARTS):
                for name in [name for name in own if name not in held and name not in _MODULE_PARTS]:
                    self._warn(path, name, own[name], None)
                    del own[name]
        for path, neuron, states in self._neurons:
            replaced = [name for name, state in states.items() if getattr(neuron, name, None) is not state]
            if replaced:
                for name in replaced:
                    (neuron._buffers if name in neuron._buffers else neuron.__dict__)[name] = states[name]
                if getattr(neuron, "init_hidden", False):
                    self._warn_of_hidden_state(path or type(neuron).__name__, replaced)

    def _warn(self, path: str, name: str, new: Any, old: Any) -> None:
        if not (_tensors(new) or _tensors(old)):
            return
        full = f"{path}.{name}" if path else name
        if full not in self._warned:
            self._warned.add(full)
            logger.warning(
                "forward leaves a tensor in the attribute %s, which a compiled graph does not carry on: every run "
                "starts from the value it had when the model was compiled. For a state that lasts, call "
                "register_buffer(%r, tensor) in __init__ and change it in place: self.%s.copy_(new_values).",
                full,
                name,
                name,
            )

    def _warn_of_hidden_state(self, path: str, names: List[str]) -> None:
        if path not in self._warned:
            self._warned.add(path)
            logger.warning(
                "%s keeps its state (%s) with init_hidden=True: every run of forward starts from what it was when the "
                "model was compiled, and PopTorch refuses to replace a buffer. Pass the state from step to step "
                "(init_hidden=False), or run all steps in one call (snnipu.MultiStep).",
                path,
                ", ".join(names),
            )
