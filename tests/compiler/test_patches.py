"""``stop()`` restores all attributes of PyTorch, snnTorch and snnipu."""

import textwrap

import pytest
import snntorch
import torch
from support.commands import python
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu._names import installed
from snnipu.compiler import backend, patches
from snnipu.ops import step_operators

pytestmark = [needs_backend]

SCRIPT = """
    import sys, types
    import torch, snntorch
    import snnipu as snn

    PACKAGES = ("torch", "snntorch", "snnipu")


    def of_packages(name):
        return name.split(".")[0] in PACKAGES


    def holders():
        modules = [each for name, each in sys.modules.items() if of_packages(name) and type(each) is types.ModuleType]
        values = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
        return [*modules, *dict.fromkeys(value for value in values if of_packages(value.__module__))]


    def attributes():
        return {(id(holder), name): value for holder in KEPT for name, value in vars(holder).items()}


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.lif = torch.nn.Linear(4, 3), snn.Leaky(beta=0.9)

        def forward(self, x):
            mem, out = self.lif.reset_mem(), []
            for step in range(len(x)):
                spk, mem = self.lif(self.fc(x[step]), mem)
                out.append(spk)
            return torch.stack(out)


    torch.compile(lambda x: x.sum() + 1, backend="eager")(torch.ones(2))
    net, x = Net(), torch.rand(6, 2, 4)
    KEPT = holders()
    names = {id(holder): getattr(holder, "__name__", "") for holder in KEPT}
    settings = {name: getattr(torch._dynamo.config, name) for name in ("optimize_ddp", "skip_nnmodule_hook_guards")}
    code, before = Net.forward.__code__, attributes()


    def replaced():
        now = attributes()
        keys = [key for key in before.keys() | now.keys() if before.get(key, KEPT) is not now.get(key, KEPT)]
        # PyTorch itself counts in classes, and sets what a module has besides functions.
        kinds = {id(holder): types.FunctionType if type(holder) is types.ModuleType else object for holder in KEPT}
        found = [(now.get(key, before.get(key)), key) for key in keys]
        found = [key for value, key in found if isinstance(value, kinds[key[0]]) and not isinstance(value, int)]
        return sorted(f"{names[holder]}.{name}" for holder, name in found)


    for run in range(2):
        found = snn.auto()
        for _ in range(4):
            net(x)
        print(found)
        assert any(loop.runs for loop in found.loops), found
        own = {"AttributeStates", "Surrogate", "step_operators", "snnipu.ops.step_operators", "WeakInstances"}
        assert {name.rpartition(".")[0] for name in replaced()} <= own, replaced()
        found.stop()
        assert replaced() == [], replaced()
        assert Net.forward.__code__ is code
        assert settings == {name: getattr(torch._dynamo.config, name) for name in settings}
        net(x)
    snn.compile(net)(x)
    snn.auto().stop()
    assert Net.forward.__code__ is code
"""


@pytest.mark.slow
def test_stop_leaves_nothing_replaced(repository, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    python(script, env={"PYTHONPATH": str(repository), "PYTHONWARNINGS": "ignore"})


@pytest.mark.skipif(not installed.reset_reaches_others(), reason="this snnTorch resets one network alone")
def test_a_reset_in_a_trace_after_stop_waits_for_the_graph(monkeypatch):
    """In a program's own ``torch.compile``, neurons of other networks are reset when the graph runs."""
    backend.enable("this test")
    backend.disable("this test")
    monkeypatch.setattr(step_operators, "enabled", False)  # another test may have enabled it
    torch._dynamo.reset()
    net, other = (nn.Sequential(snn.Leaky(beta=0.9, init_hidden=True)) for _ in range(2))
    x, after_trace = torch.ones(2, 3), []
    other(x)

    def as_traced(graph, _):
        after_trace.append(other[0].mem.clone())
        return graph.forward

    @torch.compile(backend=as_traced)
    def run(x):
        snntorch.utils.reset(net)
        return net(x)

    run(x)
    assert torch.equal(after_trace[0], x)
    assert not other[0].mem.any()


def test_what_another_package_replaces_afterwards_stays():
    class Owner:
        kept, replaced = 1, 2

    attributes = patches.Patches()
    for name in ("kept", "replaced", "new"):
        attributes.replace(Owner, name, object())
    Owner.replaced = "another package's"
    attributes.undo()
    assert (Owner.kept, Owner.replaced) == (1, "another package's")
    assert not hasattr(Owner, "new")
