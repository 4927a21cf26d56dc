"""A patch of snnTorch's attribute probes, which read buffers only: the states of snnipu's neurons are attributes."""

from typing import Any, Callable

import torch
from snntorch.functional.probe import AttributeMonitor


def _create_hook(self: Any, name: str) -> Callable[..., None]:
    def hook(module: torch.nn.Module, *arguments: Any) -> None:
        if self.is_enable():
            self.name_records_index[name].append(len(self.records))
            self.records.append(self.function_on_attribute(getattr(module, self.attribute_name)))

    return hook


AttributeMonitor.create_hook = _create_hook
