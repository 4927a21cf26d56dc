"""Count PopTorch's own tests that the host runtime passes, without tests of internals.

PopTorch's tests (github.com/graphcore/poptorch, folder ``tests``) are not part of this project. Run them with
``--junitxml``, and with a ``sitecustomize.py`` that makes ``import poptorch`` give ``snnipu.poptorch``
(``snnipu._dropin.provide_poptorch``). Then::

    python tests/support/poptorch_tests.py FOLDER RESULTS.xml [RESULTS.xml ...]

counts them and lists the failures. Tests whose source or name matches a pattern below are left out. ``tests/poptorch``
tests the behaviours that matter.
"""

import ast
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

# A pattern in the source of a test, or of a helper that it calls -> the reason for leaving it out.
BY_SOURCE = {
    r"LogChecker|LogIterator|\bcaplog\b|\bcapfd\b|\bcapsys\b|printCapfdOnExit": "reads the log of PopTorch or PopART",
    r"_debugGetPopartIR": "reads PopART's graph",
    r"poptorch\._impl\b|outputDevice\(": "calls PopTorch's dispatcher",
    r"poptorch_core\.(?!Error|RecoverableError|UnrecoverableError)\w+": "calls PopTorch's compiled core",
    r"\bpva\b|enableProfiling|autoReport": "reads a profile that Poplar writes",
    r"saveInitializersToFile|exportPoplar|deviceToHostCounter|hostToDeviceCounter": "counts copies to the device",
    r"_PopartCallback|unittest\.mock\.patch\(.*poptorch\._": "replaces internals of PopTorch",
    r"loadLibrary|LoadLibrary|rglob\(\"lib": "needs a library compiled against PopART",
}
# A pattern in the name of a test -> the reason for leaving it out.
BY_NAME = {
    r"TestOpHarness": "tests the harness of PopTorch's tests",
    r"^test_scatter_?\[|^test_scatter_scalar\[|^test_scatter_different_src_index_shapes|^test_roll\[": (
        "calls PyTorch as its current version refuses it, without PopTorch, too"
    ),
    r"^test_index_put_masked_(fill|assign)\[.*uint8": "masks of bytes, which PyTorch has dropped",
    r"^test_torch_save$": "torch.load as before PyTorch 2.6, which loads weights only",
    r"^test_extra_attributes": "gives PyTorch's optimizers attributes in the place of its methods",
    r"^test_automatic_loss_scaling": "PopART's automatic loss scaling, whose tensors a host has not",
}


def _definitions(tree):
    """Return functions and classes of a file by name."""
    return {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def _source(name, helpers, text, seen):
    """Return the source of ``name`` and of the helpers in its file that it uses."""
    if name in seen or name not in helpers:
        return ""
    seen.add(name)
    node = helpers[name]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    definition = "\n".join(text[first - 1 : node.end_lineno])
    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return "\n".join([definition, *(_source(other, helpers, text, seen) for other in sorted(used))])


def reason_to_leave_out(folder, case):
    """Return the reason for leaving out a test case of JUnit's XML, or None if it counts."""
    name, classname = case.get("name", ""), case.get("classname", "")
    for pattern, reason in BY_NAME.items():
        if re.search(pattern, name) or re.search(pattern, classname):
            return reason
    files = [Path(folder, f"{part}.py") for part in classname.split(".")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    content = file.read_text()
    helpers = _definitions(ast.parse(content))
    source = _source(name.partition("[")[0], helpers, content.splitlines(), set())
    return next((reason for pattern, reason in BY_SOURCE.items() if re.search(pattern, source)), None)


def main(folder, *results):
    cases = [case for file in results for case in ElementTree.parse(file).iter("testcase")]
    skipped = [case for case in cases if case.find("skipped") is not None]
    left_out, failures, counted = Counter(), [], 0
    for case in cases:
        if case.find("skipped") is not None:
            continue
        reason = reason_to_leave_out(folder, case)
        if reason is not None:
            left_out[reason] += 1
            continue
        counted += 1
        if case.find("failure") is not None or case.find("error") is not None:
            failures.append(f"{case.get('classname')}::{case.get('name')}")
    print(*sorted(failures), sep="\n")
    for reason, count in left_out.most_common():
        print(f"{count:5} left out: {reason}")
    passed = counted - len(failures)
    print(f"{len(cases)} collected, {len(skipped)} skipped, {sum(left_out.values())} left out, {counted} counted")
    print(f"{passed} pass, {len(failures)} fail: {100 * passed / max(counted, 1):.2f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
