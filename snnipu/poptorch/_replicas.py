"""Buffers of replicas: with ``Options.broadcastBuffers(False)`` each replica has its own, as on IPUs.

The model itself holds those of replica 0, which is what a host reads back.
"""

from typing import Dict, List

import torch


class ReplicaBuffers:
    """Exchanges the buffers that ``forward`` changes when another replica's turn comes."""

    def __init__(self, model: torch.nn.Module, replicas: int) -> None:
        self._buffers: Dict[str, torch.Tensor] = dict(model.named_buffers()) if replicas > 1 else {}
        self._replicas = replicas
        self._own: Dict[str, List[torch.Tensor]] = {}
        self._current = 0

    def separate(self, changed: Dict[str, torch.Tensor]) -> None:
        """``changed``: the buffers that the first replica changed in its first run, with their values before it."""
        for name, before in changed.items():
            if name in self._buffers:
                self._own[name] = [before.clone() for _ in range(self._replicas)]

    def broadcast(self) -> None:
        """Every replica takes what the model holds now."""
        for name, own in self._own.items():
            for copy in own:
                copy.copy_(self._buffers[name].detach())

    def enter_call(self) -> None:
        """Buffers that the host changed since the last call are every replica's."""
        for name, own in self._own.items():
            if not torch.equal(own[0], self._buffers[name].detach()):
                for copy in own:
                    copy.copy_(self._buffers[name].detach())

    def enter(self, replica: int) -> None:
        """It is this replica's turn."""
        if replica == self._current or not self._own:
            return
        with torch.no_grad():
            for name, own in self._own.items():
                own[self._current].copy_(self._buffers[name])
                self._buffers[name].copy_(own[replica])
        self._current = replica

    def leave_call(self) -> None:
        self.enter(0)
        for name, own in self._own.items():
            own[0].copy_(self._buffers[name].detach())
