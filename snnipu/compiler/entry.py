"""What PyTorch loads for ``torch.compile(backend="snnipu")``: to load it makes neurons known to TorchDynamo."""

from snnipu.compiler.backend import compile_graph, enable

enable()
snnipu = compile_graph
