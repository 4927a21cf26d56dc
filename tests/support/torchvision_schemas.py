"""Make torchvision importable where its compiled operators do not load (PyPI's CUDA build beside a CPU PyTorch).

The import fails because the schemas of two operators are missing. The data sets are plain Python, and work with the
schemas defined.
"""

import importlib
import importlib.util
import sys

# the schemas live as long as the library object
_libraries = []


def define_torchvision_schemas():
    """Make ``import torchvision`` work where only its compiled operators are missing."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        import torch

        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
