"""Buffers of replicas: with ``Options.broadcastBuffers(False)`` each replica has its own copy, as on IPUs.

Between calls the model holds the buffers of replica 0, which an IPU would copy to the host.
"""

from typing import Dict, List

import torch


class ReplicaBuffers:
    """The replicas' copies of the buffers that ``forward`` changes; the model holds those of the running replica."""

    def __init__(self, model: torch.nn.Module, replicas: int) -> None:
        self._buffers: Dict[str, torch.Tensor] = dict(model.named_buffers()) if replicas > 1 else {}
        self._replicas = replicas
        self._copies: Dict[str, List[torch.Tensor]] = {}
        self._current = 0

    def separate(self, changed: Dict[str, torch.Tensor]) -> None:
        """Start the copies: ``changed`` has the values, before the first run, of the buffers that it changed."""
        for name, before in changed.items():
            if name in self._buffers:
                self._copies[name] = [before.clone() for _ in range(self._replicas)]

    def broadcast(self) -> None:
        """Give every replica the model's present buffers."""
        for name, copies in self._copies.items():
            for copy in copies:
                copy.copy_(self._buffers[name].detach())

    def enter_call(self) -> None:
        """Give every replica the buffers that the user changed since the last call."""
        for name, copies in self._copies.items():
            if not torch.equal(copies[0], self._buffers[name].detach()):
                for copy in copies:
                    copy.copy_(self._buffers[name].detach())

    def enter(self, replica: int) -> None:
        """Put the buffers of a replica into the model."""
        if replica == self._current or not self._copies:
            return
        with torch.no_grad():
            for name, copies in self._copies.items():
                copies[self._current].copy_(self._buffers[name])
                self._buffers[name].copy_(copies[replica])
        self._current = replica

    def leave_call(self) -> None:
        self.enter(0)
        for name, copies in self._copies.items():
            copies[0].copy_(self._buffers[name].detach())
