"""The registry of Python functions that stand for PopART's custom operators on the host.

On an IPU, ``poptorch.custom_op`` names an operator that a shared library registered with PopART. The host has no
PopART and looks the name up in this registry.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from snnipu.backends import popart
from snnipu.backends.popart import DOMAIN
from snnipu.poptorch import _tracing
from snnipu.poptorch._errors import Error, InvalidArgument, InvalidType, check_int, check_str, check_tensor, check_type
from snnipu.poptorch._structure import check_like

# (inputs, attributes) -> outputs
HostImplementation = Callable[[List[torch.Tensor], Dict[str, Any]], Sequence[torch.Tensor]]

_registry: Dict[Tuple[str, str, int], HostImplementation] = {}

_SNNIPU_OPERATORS: Dict[Tuple[str, str, int], HostImplementation] = {
    ("NeuronSequence", DOMAIN, 1): popart.neuron_sequence,
    **popart.HOST_OPERATORS,
}


def register(name: str, domain: str, domain_version: int, implementation: HostImplementation) -> None:
    """Register the Python function that runs a custom operator on the host.

    Args:
        name, domain: the operator's names in PopART.
        domain_version: at least 1.
        implementation: ``implementation(inputs, attributes)`` returns the outputs in order. Its results must be
            differentiable if the operator has a gradient.
    """
    key = check_str(name, "name"), check_str(domain, "domain"), check_int(domain_version, "domain_version", 1)
    _registry[key] = check_type(implementation, f"register: implementation of {domain}.{name}", Callable, "a function")


def unregister(name: str, domain: str, domain_version: int) -> None:
    """Remove an implementation; no effect if none is registered.

    Args:
        name, domain, domain_version: as given to :func:`register`.
    """
    _registry.pop((name, domain, domain_version), None)


def registered() -> List[str]:
    """Return the operators that ``custom_op`` can run here, as ``domain.name:version``."""
    return sorted({f"{domain}.{name}:{version}" for name, domain, version in [*_registry, *_SNNIPU_OPERATORS]})


def _implementation(name: str, domain: str, version: int) -> HostImplementation:
    key = (name, domain, version)
    implementation = _registry.get(key) or _SNNIPU_OPERATORS.get(key)
    if implementation is None:
        raise Error(
            f"custom_op: no operator {name!r} of domain {domain!r}, version {version}, on this machine. Operators that "
            f"a shared library registers with PopART need PopTorch itself. Here: {', '.join(registered())}."
        )
    return implementation


def _check_attributes(attributes: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    scalars = (float, int, str)
    for key, value in (attributes or {}).items():
        check_str(key, "custom_op: attribute names")
        elements = list(value) if isinstance(value, (list, tuple)) else [value]
        for element in elements:
            check_type(element, f"custom_op: attribute {key!r}", scalars, "a float, int, str or a list of them")
        if any(type(element) is not type(elements[0]) for element in elements):
            raise InvalidType(f"custom_op: the elements of attribute {key!r} must be of one type, got {value!r}")
        for text in [key, *elements]:
            if isinstance(text, str) and not text.isascii():
                raise InvalidArgument(f"custom_op: attributes are ASCII, got {text!r}")
    return dict(attributes or {})


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: Optional[Dict[str, Any]] = None,
) -> List[torch.Tensor]:
    """Apply a custom operator and return its outputs (PopTorch user guide, "Creating custom operators").

    Args:
        inputs: the input tensors, in the operator's order.
        name, domain, domain_version: the operator, as registered with PopART or :func:`register`.
        example_outputs: tensors with the shapes and types of the outputs; their values are not read.
        attributes: the operator's attributes by name: a float, int or ASCII str each, or a list of one of them.

    Raises:
        poptorch.Error: this machine has no such operator, an attribute is malformed, or the outputs differ from
            ``example_outputs`` in number, shapes or types.
    """
    for number, tensor in enumerate(inputs):
        check_tensor(tensor, f"custom_op: inputs[{number}]")
    checked = _check_attributes(attributes)
    hook = _tracing.execution_hook() if _tracing.isRunningOnIpu() else None
    outputs = hook(name, domain, domain_version, list(inputs), checked) if hook is not None else None
    if outputs is None:
        outputs = list(_implementation(name, domain, domain_version)(list(inputs), checked))
    check_like(f"custom_op: {domain}.{name}", "example_outputs", example_outputs, outputs)
    return outputs
