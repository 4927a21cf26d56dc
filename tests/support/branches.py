"""Other people's tests with branches beside all their loops: they must do what they do without.

``python tests/support/branches.py HOW RESULTS PREFIXES TESTS...`` runs modules of tests, unittest's or, after
``pytest:``, pytest's. The modules that begin with one of PREFIXES are imported through :class:`Importer`. The outcome
of each test is written as JSON.

HOW: ``plain``: as Python compiles them; ``untaken``: with branches that are not taken, as most are after
``snn.auto()``; ``loops``: as if each loop were one over time, whose function runs, in Python, in its place;
``functions``: as if each function were compiled as a whole.
"""

import ast
import importlib.abc
import importlib.machinery
import itertools
import json
import sys
import tokenize
import types
import unittest

from snnipu.compiler import outline
from snnipu.compiler.sources import Source

UNBOUND = object()
WAYS = ("plain", "untaken", "loops", "functions")


class Taken:
    """In place of a loop's name: its function runs, as if the loop were one over time that is compiled."""

    unbound = UNBOUND

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return (self.function(*args),)


class Untaken(Taken):
    """Nothing has run: the loop itself is to."""

    def __call__(self, /, *args, **kwargs):
        return None


class Whole:
    """In place of the name of a function that is compiled as a whole: its code before runs."""

    def __init__(self, code, namespace):
        self.code, self.namespace = code, namespace

    def __call__(self, cells, /, *args, **kwargs):
        names = dict(zip(cells.__code__.co_freevars, cells.__closure__)) if cells else {}
        closure = tuple(names[name] for name in self.code.co_freevars)
        return (types.FunctionType(self.code, self.namespace, self.code.co_name, None, closure)(*args, **kwargs),)


def functions_of(hosts, namespace, filename="program.py"):
    """The loops as functions, by name."""
    found = {}
    for host in hosts:
        for loop in host.loops:
            exec(compile(ast.Module(loop.functions, []), filename, "exec", dont_inherit=True), namespace, found)
    return found


def with_branches(tree, filename, namespace, how, of_module=True):
    """The code of a module with branches beside all loops, and the hosts; ``namespace`` is given what it asks for."""
    source = Source(tree, filename)
    hosts = source.take_out(itertools.count(), lambda function: True, of_module)
    functions = functions_of(hosts, namespace, filename)
    namespace.setdefault(outline.UNBOUND, UNBOUND)
    for host in hosts:
        taken = Taken if how == "loops" else Untaken
        namespace.update({loop.name: taken(functions[loop.name]) for loop in host.loops})
        if host.call:
            namespace[host.call] = Whole(host.original, namespace) if how == "functions" else Untaken(None)
    return compile(source.tree, filename, "exec", dont_inherit=True), hosts


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules with branches."""

    def __init__(self, how, prefixes):
        self.how, self.prefixes = how, tuple(prefixes)
        self.loops = 0

    def find_spec(self, name, path=None, target=None):
        if not any(name == one or name.startswith(f"{one}.") for one in self.prefixes):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader_state, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return None

    def get_source(self, name):
        with tokenize.open(sys.modules[name].__file__) as file:
            return file.read()

    def exec_module(self, module):
        with open(module.__file__, "rb") as file:
            tree = ast.parse(file.read(), module.__file__)
        if self.how == "plain":
            code = compile(tree, module.__file__, "exec", dont_inherit=True)
        else:
            code, hosts = with_branches(tree, module.__file__, vars(module), self.how)
            self.loops += sum(len(host.loops) for host in hosts)
        exec(code, vars(module))


class Outcomes(unittest.TestResult):
    """The outcome of each test, by its name."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def addSuccess(self, test):
        self.found.setdefault(test.id(), "passed")

    def addSkip(self, test, reason):
        self.found[test.id()] = "skipped"

    def addFailure(self, test, error):
        self.found[test.id()] = f"failed: {self._exc_info_to_string(error, test)}"

    addError = addFailure

    def addExpectedFailure(self, test, error):
        self.found[test.id()] = "expected failure"

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(test, error)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid] = report.outcome + (f": {report.longrepr}" if report.failed else "")


def main(how, results, prefixes, *tests):
    importer = Importer(how, prefixes.split(","))
    for name in list(sys.modules):
        if any(name == one or name.startswith(f"{one}.") for one in importer.prefixes):
            del sys.modules[name]
    sys.meta_path.insert(0, importer)
    outcomes = Outcomes()
    of_pytest = [name.partition(":")[2] for name in tests if name.startswith("pytest:")]
    unittest.defaultTestLoader.loadTestsFromNames([name for name in tests if ":" not in name]).run(outcomes)
    if of_pytest:
        import pytest

        options = ["--assert=plain", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--pyargs"]
        pytest.main([*options, *of_pytest], plugins=[outcomes])
    with open(results, "w") as file:
        json.dump({"loops": importer.loops, "tests": outcomes.found}, file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
