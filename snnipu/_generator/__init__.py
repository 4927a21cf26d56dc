"""From a neuron's equation to kernels: its step recorded on symbols, the adjoint derived, both printed.

Torch-free, with relative imports alone: ``setup.py`` runs it in pip's isolated build.
"""

from .graph import TraceError as TraceError
from .step import Adjoint as Adjoint
from .step import Step as Step
from .step import evaluate as evaluate
from .step import signature as signature
from .step import variants as variants
