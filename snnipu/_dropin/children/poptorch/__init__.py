"""``snnipu.poptorch`` as ``poptorch``, in a process that a script started; see ``snnipu._dropin.children``."""

import importlib
import sys

from snnipu import _dropin

_dropin.provide_poptorch()
sys.modules[__name__] = importlib.import_module("snnipu.poptorch")
