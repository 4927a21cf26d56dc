"""The cases, one module each."""

from benchmarks.cases import (
    compile,
    conv,
    convolution,
    delays,
    layer,
    lif,
    memory,
    network,
    neurons,
    online,
    programs,
    scale,
    sparse,
    zeros,
)

CASES = {
    "compile": compile.CASE,
    "conv": conv.CASE,
    "convolution": convolution.CASE,
    "delays": delays.CASE,
    "layer": layer.CASE,
    "lif": lif.CASE,
    "memory": memory.CASE,
    "network": network.CASE,
    "neurons": neurons.CASE,
    "online": online.CASE,
    "programs": programs.CASE,
    "scale": scale.CASE,
    "sparse": sparse.CASE,
    "zeros": zeros.CASE,
}
