import sys

import pytest
import torch

from benchmarks import peers
from benchmarks.case import Unavailable
from benchmarks.peers import PEERS


@pytest.mark.parametrize(
    ("package", "build"),
    [
        ("spikingjelly", lambda: peers.spikingjelly_lif(0.9)),
        ("spikingjelly", lambda: peers.spikingjelly_lif(0.9, hard_reset_slope=10.0)),
        ("norse", lambda: peers.norse_lif(0.9, torch.float32, torch.device("cpu"))),
    ],
)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, r'not installed: pip install "snnipu\[bench\]"'),
        ("raise RuntimeError('built for another torch')", "import fails: RuntimeError: built for another torch"),
        ("import snnipu_no_such_package", r"import fails: .*snnipu_no_such_package"),
    ],
)
def test_a_peer_that_cannot_be_imported(monkeypatch, tmp_path, package, build, code, message):
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
    with pytest.raises(Unavailable, match=message):
        build()


def test_every_peer_has_a_summary():
    assert set(PEERS) == {"snntorch", "compile", "spikingjelly", "norse", "braintrace", "dcls", "copy"}
    assert all(PEERS.values())
