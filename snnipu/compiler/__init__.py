"""``torch.compile(net, backend="snnipu")``: a loop over time steps at the speed of a sequence."""

from snnipu.compiler.backend import compile_graph, enable

enable()

__all__ = ["compile_graph"]
