"""Modules have no import cycles, not even inside functions or for types.

import-linter's contracts in pyproject.toml check this for the package's parts. They miss a module that imports its own
package.
"""

import ast
import sys

from support.commands import ROOT, python


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).replace(".__init__", "")


def imported(tree, name, is_package):
    """Yield the names that a module imports: modules, or names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def graph_of(folder):
    paths = {name_of(path): path for path in folder.rglob("*.py")}

    def module(name):
        return name if name in paths else name.rpartition(".")[0]

    return {
        name: {module(each) for each in imported(ast.parse(path.read_text()), name, path.stem == "__init__")}
        & {*paths} - {name}
        for name, path in paths.items()
    }


def test_no_circle():
    graph = graph_of(ROOT / "snnipu")
    assert "snnipu.ops" in graph["snnipu.backends"]
    while graph:
        free = {name for name, needs in graph.items() if not needs & graph.keys()}
        assert free, f"in circles, or above them: {sorted(graph)}"
        graph = {name: needs for name, needs in graph.items() if name not in free}


def test_a_sub_interpreter_is_refused():
    """In a sub-interpreter, PyTorch's import does not end."""
    code = "import _xxsubinterpreters as made\nmade.run_string(made.create(), 'import snnipu')"
    if sys.version_info >= (3, 13):
        code = "import _interpreters as made, sys\nsys.exit(made.exec(made.create(), 'import snnipu').msg)"
    done = python("-c", code, status=None, cwd=ROOT, timeout=60)
    assert done.returncode != 0
    assert "snnipu runs in the main interpreter alone" in done.stderr


def test_the_benchmarks_import_public_names_alone():
    """The benchmarks import no module and no name of snnipu with a leading underscore."""
    for path in (ROOT / "benchmarks").rglob("*.py"):
        for name in imported(ast.parse(path.read_text(encoding="utf-8")), name_of(path), path.stem == "__init__"):
            private = [part for part in name.split(".") if part.startswith("_")]
            assert not name.startswith("snnipu.") or not private, (path.name, name)


def test_the_import_does_not_start_autograds_engine():
    """The engine asks CUDA for its devices. Later changes of CUDA_VISIBLE_DEVICES have no effect, and forks have no
    CUDA.
    """
    code = (
        "import torch, torch.autograd.graph as graph\n"
        "class Engine:\n"
        "    def run_backward(self, *a, **k): raise AssertionError('the engine was started')\n"
        "real, torch.autograd.variable.Variable._execution_engine = (\n"
        "    torch.autograd.variable.Variable._execution_engine, Engine())\n"
        "import snnipu as snn\n"
        "lif = snn.Leaky(beta=0.9); lif(torch.zeros(2, 3)); snn.RSynaptic(alpha=0.9, beta=0.8, linear_features=3)\n"
        "try: lif(torch.zeros(2, 3, requires_grad=True))[0].sum().backward()\n"
        "except AssertionError: print('it is seen')\n"
    )
    done = python("-W", "ignore", "-c", code)
    assert done.stdout.strip() == "it is seen", done.stderr
