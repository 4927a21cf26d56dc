"""A folder for ``sys.path`` that contains ``poptorch`` and ``popdist``, which are snnipu's modules.

``python -m snnipu run`` appends it to ``sys.path``. Processes that multiprocessing spawns inherit the path, so that the
script finds the same modules when they import it.
"""
