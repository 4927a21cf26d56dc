"""Ways to compute a layer's weights from other parameters at each call."""

import warnings

from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune


def parametrized(make, *names):
    """Return a function that registers the parametrization ``make()`` on these parameters of a layer."""

    def change(layer):
        for name in names:
            parametrize.register_parametrization(layer, name, make())

    return change


def weight_norm_hooks(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for parametrizations.weight_norm
        utils.weight_norm(layer)


COMPUTED = {
    "weight_norm hooks": weight_norm_hooks,
    "weight_norm": getattr(parametrizations, "weight_norm", weight_norm_hooks),  # PyTorch 2.0 has none
    "orthogonal": parametrizations.orthogonal,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "pruned twice": lambda layer: [prune.random_unstructured(layer, "weight", 0.3) for _ in range(2)],
    "spectral_norm hooks": lambda layer: utils.spectral_norm(layer).eval(),
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer).eval(),
}
