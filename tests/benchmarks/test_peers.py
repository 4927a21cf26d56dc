import sys

import pytest
import torch

from benchmarks import peers
from benchmarks.case import Unavailable
from benchmarks.peers import PEERS


def unroll(rule, x):
    x = x.clone().requires_grad_()
    v, spk_rec, v_rec = torch.zeros_like(x[0]), [], []
    for cur in x.unbind():
        spk, v = rule(cur, v)
        spk_rec.append(spk)
        v_rec.append(v)
    spk = torch.stack(spk_rec)
    (gradient,) = torch.autograd.grad(spk, x, torch.ones_like(spk))
    return spk.detach(), torch.stack(v_rec).detach(), gradient


def test_spikingjelly_rule_by_hand():
    x = torch.tensor([[0.6], [0.6], [0.1]], dtype=torch.float64)
    spk, v, gradient = unroll(peers.spikingjelly_rule(0.9), x)
    assert spk.flatten().tolist() == [0, 1, 0]
    assert v.flatten().tolist() == pytest.approx([0.6, 0.14, 0.226])
    # A detached reset leaves 0.9 between the steps; the surrogate is 1 / (1 + (pi (h - 1))^2).
    slopes = [1 / (1 + (torch.pi * (h - 1)) ** 2) for h in (0.6, 1.14, 0.226)]
    assert gradient.flatten().tolist() == pytest.approx(
        [slopes[0] + 0.9 * slopes[1] + 0.81 * slopes[2], slopes[1] + 0.9 * slopes[2], slopes[2]]
    )


def test_spikingjelly_hard_reset_rule_by_hand():
    x = torch.tensor([[0.6], [0.6], [0.1]], dtype=torch.float64)
    spk, v, gradient = unroll(peers.spikingjelly_rule(0.9, 10.0), x)
    assert spk.flatten().tolist() == [0, 1, 0]
    assert v.flatten().tolist() == pytest.approx([0.6, 0, 0.1])
    slopes = [5 / (1 + 10 * abs(h - 1)) ** 2 for h in (0.6, 1.14, 0.1)]
    # Nothing passes the reset.
    assert gradient.flatten().tolist() == pytest.approx([slopes[0] + 0.9 * slopes[1], slopes[1], slopes[2]])


def test_norse_rule_by_hand():
    x = torch.tensor([[6.0], [6.0], [1.0]], dtype=torch.float64)
    spk, v, gradient = unroll(peers.norse_rule(0.9), x)
    assert spk.flatten().tolist() == [0, 1, 0]
    assert v.flatten().tolist() == pytest.approx([0.6, 0.14, 0.226])
    slopes = [1 / (1 + abs(h - 1)) ** 2 for h in (0.6, 1.14, 0.226)]
    kept = [0.9 * (1 - slope) for slope in slopes]  # the reset carries gradient
    assert gradient.flatten().tolist() == pytest.approx(
        [
            0.1 * (slopes[0] + kept[0] * slopes[1] + kept[0] * kept[1] * slopes[2]),
            0.1 * (slopes[1] + kept[1] * slopes[2]),
            0.1 * slopes[2],
        ]
    )


@pytest.mark.parametrize(
    ("package", "build"),
    [
        ("spikingjelly", lambda: peers.spikingjelly_lif(0.9)),
        ("spikingjelly", lambda: peers.spikingjelly_lif(0.9, hard_reset_slope=10.0)),
        ("norse", lambda: peers.norse_lif(0.9, torch.float32, torch.device("cpu"))),
    ],
)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, r'not installed: pip install "snnipu\[bench\]"'),
        ("raise RuntimeError('built for another torch')", "import fails: RuntimeError: built for another torch"),
        ("import snnipu_no_such_package", r"import fails: .*snnipu_no_such_package"),
    ],
)
def test_a_peer_that_cannot_be_imported(monkeypatch, tmp_path, package, build, code, said):
    class Hidden:
        def find_spec(self, fullname, path=None, target=None):
            if fullname == package and code is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    for name in list(sys.modules):
        if name == package or name.startswith(package + "."):
            monkeypatch.delitem(sys.modules, name)
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(code or "")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Hidden(), *sys.meta_path])
    with pytest.raises(Unavailable, match=said):
        build()


def test_every_peer_has_a_summary():
    assert set(PEERS) == {"snntorch", "compile", "spikingjelly", "norse", "braintrace", "dcls", "copy"}
    assert all(PEERS.values())
