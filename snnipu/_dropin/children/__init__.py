"""A folder for ``sys.path``: in it, ``poptorch`` and ``popdist`` are snnipu's.

``python -m snnipu run`` appends it, and processes that multiprocessing spawns inherit ``sys.path``: what they import of
the script finds the same modules there.
"""
