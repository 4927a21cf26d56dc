"""The generator of kernels from a neuron's equation.

It records the step with symbols, derives the adjoint, and prints both as C++ and Triton. The package imports no PyTorch
and uses only relative imports, because ``setup.py`` runs it in pip's isolated build.
"""

from typing import Any, Dict, Mapping

from .graph import TraceError as TraceError
from .neuron import Neuron as Neuron
from .neuron import expression as expression
from .neuron import neuron as neuron
from .print_cpp import print_neurons as print_neurons
from .print_surrogates import print_surrogates as print_surrogates
from .print_surrogates import print_triton_surrogates as print_triton_surrogates
from .print_triton import print_triton as print_triton
from .step import Adjoint as Adjoint
from .step import Reads as Reads
from .step import Step as Step
from .step import evaluate as evaluate
from .step import needed as needed
from .step import signature as signature
from .step import variants as variants

SURROGATES_HEADER = "generated_surrogates.hpp"


def headers(equations: Mapping[str, Any]) -> Dict[str, str]:
    """Return the generated C++ headers by file name; ``equations`` is the namespace of ``equations.py``."""
    neurons = [neuron(function, equations["OPTIONS"]) for function in equations["NEURONS"]]
    surrogates = print_surrogates(equations["SURROGATES"])
    return {"generated_neurons.hpp": print_neurons(neurons), SURROGATES_HEADER: surrogates}
