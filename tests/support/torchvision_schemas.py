"""For machines where torchvision's compiled operators do not load, as with PyPI's CUDA build beside a CPU PyTorch.

Its import then fails for want of the schemas of two operators. The data sets are plain Python: with the schemas
defined, they work.
"""

import importlib
import importlib.util
import sys

# the schemas live as long as the library object does
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
