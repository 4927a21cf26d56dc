"""Other packages' tests with branches before all their loops: the outcomes must not change.

``python tests/support/branches.py HOW RESULTS PREFIXES TESTS...`` runs modules of unittest's tests, or of pytest's
after
``pytest:``. :class:`Importer` imports the modules that begin with one of PREFIXES. The outcome of each test is written
as JSON. HOW is ``plain`` (Python's own compilation), ``untaken`` (branches that are not taken, the most frequent case
after ``snn.auto()``) or ``loops`` (the functions of the loops' bodies run in Python, step by step).
"""

import ast
import importlib.abc
import importlib.machinery
import json
import sys
import tokenize
import unittest

from snnipu.compiler.discovery import Discovery
from snnipu.compiler.items import Called
from snnipu.compiler.loop import Loop

WAYS = ("plain", "untaken", "loops")


class Taken(Loop):
    """A loop whose body runs as a function for each item of a sequence."""

    def __bool__(self):
        return True

    def __call__(self, iterable, *arguments):
        items, values, results = steps_of(iterable), list(arguments), None
        for item in items or ():
            results = self.body(item, *values)
            for value, place in zip(results, self.carries):
                if place >= 0:
                    values[place] = value
        return None if results is None else (results,)


def steps_of(items):
    """Return the items of a sequence that no step can change, or None if a step could."""
    if isinstance(items, Called):
        inner = [steps_of(argument) if isinstance(argument, Called) else argument for argument in items.arguments]
        fit = all(isinstance(argument, (range, tuple, str, int)) for argument in inner)
        return tuple(items.function(*inner)) if fit and items.function in (enumerate, zip) else None
    return items if isinstance(items, (range, tuple, str)) else None


def with_branches(tree, filename, namespace, how):
    """Return the code of a module with branches before all loops, and the loops; add their names to ``namespace``."""
    discovery = Discovery()
    tree = discovery.outlined(tree, filename, namespace)
    for loop in discovery.loops:
        loop.__class__ = Taken if how == "loops" else Loop
    return compile(tree, filename, "exec", dont_inherit=True), discovery.loops


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An importer that adds branches to modules."""

    def __init__(self, how, prefixes):
        self.how, self.prefixes = how, tuple(prefixes)
        self.loops = 0

    def find_spec(self, name, path=None, target=None):
        if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in self.prefixes):
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
            code, loops = with_branches(tree, module.__file__, vars(module), self.how)
            self.loops += len(loops)
        exec(code, vars(module))


class Outcomes(unittest.TestResult):
    """The outcome of each test by its name."""

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
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in importer.prefixes):
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
