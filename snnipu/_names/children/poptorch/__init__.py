"""``poptorch`` in a process that a script started; see ``snnipu._names.children``."""

import importlib
import sys

from snnipu._names import dropin

dropin.provide_poptorch()
sys.modules[__name__] = importlib.import_module("snnipu.poptorch")
