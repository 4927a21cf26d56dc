"""``snnipu.surrogate`` against ``snntorch.surrogate``."""

import inspect
import pickle

import pytest
import snntorch
import torch
from support.tables import assert_refused, each_row

import snnipu
from snnipu import _generator, equations, surrogate
from snnipu.backends import host

FACTORIES = [
    ("straight_through_estimator", {}),
    ("triangular", {"threshold": 0.5}),
    ("fast_sigmoid", {"slope": 7}),
    ("atan", {"alpha": 3.0}),
    ("heaviside", {}),
    ("sigmoid", {"slope": 3}),
    ("spike_rate_escape", {"beta": 2, "slope": 3}),
    ("SSO", {"mean": 0.1, "variance": 0.4}),
    ("SFS", {"slope": 4, "B": 0.2}),
]
U = torch.linspace(-3, 3, 101)


def gradient(function, u=U):
    torch.manual_seed(0)
    leaf = u.clone().requires_grad_()
    spk = function(leaf)
    spk.backward(torch.linspace(0.5, 2, u.numel()))
    return spk.detach(), leaf.grad


@pytest.mark.parametrize(("name", "parameters"), FACTORIES)
def test_equals_snntorch(name, parameters):
    theirs, ours = (getattr(source, name)(**parameters) for source in (snntorch.surrogate, surrogate))
    expected, actual = gradient(theirs), gradient(ours)
    assert torch.equal(actual[0], expected[0])
    assert torch.allclose(actual[1], expected[1], rtol=1e-6, atol=1e-7)
    assert ours.kernel is not None or name == "SSO"
    assert surrogate.as_surrogate(theirs) == ours
    assert surrogate.as_surrogate(ours) is ours
    assert pickle.loads(pickle.dumps(ours)) == ours


@pytest.mark.parametrize("name", [*dict(FACTORIES), "LSO", "custom_surrogate"])
def test_signatures_are_snntorchs(name):
    ours, theirs = (inspect.signature(getattr(s, name)).parameters for s in (surrogate, snntorch.surrogate))
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]


def test_every_factory_of_snntorch_is_covered():
    factories = {
        name
        for name, value in vars(snntorch.surrogate).items()
        if inspect.isfunction(value) and value.__module__ == snntorch.surrogate.__name__
    }
    assert factories == set(surrogate._FACTORIES)


def test_lso_works_as_documented():
    spk, grad = gradient(surrogate.LSO(0.25))
    upstream = torch.linspace(0.5, 2, U.numel())
    assert torch.equal(spk, (U > 0).float())
    assert torch.allclose(grad, torch.where(U > 0, upstream, 0.25 * upstream))
    assert surrogate.as_surrogate(snntorch.surrogate.LSO(0.25)) == surrogate.LSO(0.25)


def test_sigmoid_is_finite_where_snntorchs_is_not():
    u = torch.tensor([-8.0, 8.0])
    assert gradient(snntorch.surrogate.sigmoid(), u)[1].isnan().any()
    assert torch.equal(gradient(surrogate.sigmoid(), u)[1], torch.zeros(2))


def test_custom_surrogate():
    def gradient_function(u, grad, spikes):
        return grad * spikes

    ours = surrogate.custom_surrogate(gradient_function)
    theirs = snntorch.surrogate.custom_surrogate(gradient_function)
    assert surrogate.as_surrogate(theirs) == ours
    assert torch.equal(gradient(ours)[1], gradient(theirs)[1])


def test_what_is_not_a_known_surrogate():
    assert surrogate.as_surrogate(lambda u: u) is None
    assert surrogate.as_surrogate(torch.sigmoid) is None
    learnable = torch.tensor([1.0, 2.0], requires_grad=True)
    assert surrogate.as_surrogate(snntorch.surrogate.fast_sigmoid(learnable)) is None
    assert surrogate.as_surrogate(None) == surrogate.atan()


def test_snntorchs_other_names_resolve():
    assert surrogate.ATan is snntorch.surrogate.ATan
    with pytest.raises(AttributeError):
        surrogate.no_such_name  # noqa: B018


@each_row("""
surrogate.fast_sigmoid("steep") | TypeError: slope must be a number
surrogate.atan(None) | TypeError: alpha must be a number
surrogate.SFS(1, [2]) | TypeError: B must be a number
surrogate.custom_surrogate(3) | TypeError: custom_surrogate_function must be callable
""")
def test_bad_parameters(row):
    assert_refused(row, globals())


@pytest.mark.parametrize("number", [-1, len(equations.SURROGATES), 2**32])
def test_a_number_without_a_surrogate_is_an_error_everywhere(number):
    """The number 2^32 must not be cut off to 0."""
    kernel = surrogate.Kernel(number, 1.0, 0.0)
    u = torch.rand(3, 4)
    with pytest.raises(ValueError, match=f"kernel must be one of the {len(equations.SURROGATES)} native surrogates"):
        surrogate.surrogate_gradient(kernel, u, u)
    if host.library is None:
        return
    lif = snnipu.Leaky(beta=0.9)
    lif.spike_grad.kernel = kernel
    x = torch.rand(3, 2, 4, requires_grad=True)
    for out in (lif.sequence(x)[0], lif(x[0])[0]):
        with pytest.raises(RuntimeError, match="refused its arguments"):
            out.sum().backward()
    layer = snnipu.SparseLeaky(4, 5, beta=0.9, spike_grad=lif.spike_grad)
    with pytest.raises(RuntimeError, match="refused its arguments"):
        layer(x).values.sum().backward()


@pytest.mark.parametrize("equation", equations.SURROGATES)
def test_an_equation_is_printed_for_both_languages(equation):
    """A surrogate is one function for both languages."""
    cpp, triton = (show([equation]) for show in (_generator.print_surrogates, _generator.print_triton_surrogates))
    name = "".join(part.capitalize() for part in equation.__name__.split("_"))
    assert f"enum class SurrogateKind : unsigned {{ {name}, Any }};" in cpp
    assert "if SURROGATE == 0:" in triton


def test_an_equation_that_is_no_surrogate():
    with pytest.raises(TypeError, match="must take u, grad and up to two numbers, got u, a"):
        _generator.print_surrogates([lambda u, a: u])
