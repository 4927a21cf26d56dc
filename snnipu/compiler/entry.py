"""The entry point of ``torch.compile(backend="snnipu")``. Its import registers the neurons with TorchDynamo."""

from snnipu.compiler.backend import compile_graph, enable

enable()
snnipu = compile_graph
