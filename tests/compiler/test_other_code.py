"""Code without neurons behaves the same with branches at its loops."""

import ast
import functools
import importlib.util
import itertools
import json
import linecache
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch
from support import branches
from support.versions import needs_backend

import snnipu as snn

SCRIPT = Path(branches.__file__)
LIBRARY = (
    "json,textwrap,difflib,configparser,csv,argparse,heapq,bisect,string,shlex,copy,pprint,calendar,graphlib,html,"
    "tomllib,fractions,statistics"
)
# The modules that are imported with branches, and the modules of tests.
GROUPS = {
    "names": ("test", ("exceptions", "scope", "named_expressions", "super", "class", "keywordonlyarg", "unpack_ex")),
    "statements": ("test", ("patma", "with", "generators", "genexps", "listcomps", "raise", "grammar")),
    "asynchronous": ("test", ("coroutines", "asyncgen", "contextlib_async")),
    "objects": ("test", ("dict", "list", "set", "descr", "property", "funcattrs", "dataclasses")),
    "frames": ("test", ("traceback", "warnings", "inspect", "frame")),
    "library": (
        f"test,{LIBRARY}",
        ("json", "textwrap", "difflib", "configparser", "heapq", "shlex", "calendar", "string"),
    ),
    "networkx": ("networkx", ("cycles", "planarity", "matching", "dag", "clique", "isolate", "euler")),
    "mpmath": ("mpmath", ("linalg", "matrices", "basic_ops", "convert", "identify", "summation")),
    "sympy": ("sympy", ("core.tests.test_args", "core.tests.test_basic", "core.tests.test_containers")),
}
PLACES = {"networkx": "networkx.algorithms.tests.test_", "mpmath": "mpmath.tests.test_", "sympy": "sympy."}
# These tests read the variables, constants and globals of a function, which branches change.
OF_CODE = {
    "test.test_grammar.GrammarTests.test_funcdef",
    "test.test_funcattrs.FunctionPropertiesTest.test___builtins__",
    "test.test_inspect.test_inspect.TestGetClosureVars.test_getclosurevars_empty",
    "test.test_inspect.test_inspect.TestSignatureBind.test_signature_bind_implicit_arg",
    "test.test_inspect.TestGetClosureVars.test_getclosurevars_empty",
    "test.test_inspect.TestSignatureBind.test_signature_bind_implicit_arg",
}


@functools.lru_cache(maxsize=None)
def outcomes(group, how):
    """Return the number of loops with branches, and the outcome of each test."""
    prefixes, tests = GROUPS[group]
    if group in PLACES:
        names = [f"pytest:{PLACES[group]}{name}" for name in tests]
    else:
        names = [f"test.test_{name}" for name in tests if importlib.util.find_spec(f"test.test_{name}") is not None]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, str(SCRIPT), how, str(results), prefixes, *names]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        assert results.is_file(), done.stderr[-2000:]
        report = json.loads(results.read_text())
    return report["loops"], report["tests"]


@pytest.mark.slow
@pytest.mark.parametrize("how", branches.WAYS[1:])
@pytest.mark.parametrize("group", GROUPS)
def test_other_peoples_tests(group, how):
    _, expected = outcomes(group, "plain")
    loops, actual = outcomes(group, how)
    assert loops > 0
    assert expected.keys() == actual.keys()
    assert sum(outcome == "passed" for outcome in expected.values()) > 0.5 * len(expected)
    differences = {
        name: outcome for name, outcome in actual.items() if outcome.split(":")[0] != expected[name].split(":")[0]
    }
    assert {name: outcome[-1000:] for name, outcome in differences.items() if name not in OF_CODE} == {}


# Programs with loops of every kind: `f` is called again and again. `tick` gives what it is given; where it calls a
# neuron, each loop is one over time.
PROGRAMS = {
    "a caught error has a name": """
        def f(lines=("1", "x", "3", "y")):
            skipped, v = [], None
            for line in lines:
                try:
                    v = float(tick(line))
                except ValueError as e:
                    skipped.append(str(e))
            return v, skipped
    """,
    "a name that an error takes away": """
        def f():
            out, e = [], "before"
            for i in range(4):
                try:
                    if tick(i) == 2:
                        raise KeyError(i)
                    out.append(e)
                except KeyError as e:
                    out.append(repr(e))
                    e2 = e
                    e = "inside"
                e = "again"
            return out, e, repr(e2)
    """,
    "finally, else and raise from": """
        def f():
            out = []
            for i in range(4):
                try:
                    try:
                        1 // tick(i - 2)
                    except ZeroDivisionError as error:
                        raise ValueError("two") from error
                    else:
                        out.append("else")
                    finally:
                        out.append("finally")
                except ValueError as error:
                    out.append((str(error), type(error.__cause__).__name__))
            return out
    """,
    "an error that leaves the loop": """
        def g(out):
            for i in range(5):
                out.append(tick(i))
                if i == 3:
                    raise RuntimeError(f"at {i}")
        def f():
            out = []
            try:
                g(out)
            except RuntimeError as error:
                trace = error.__traceback__
                while trace.tb_next:
                    trace = trace.tb_next
                return out, str(error), trace.tb_lineno
    """,
    "walrus": """
        def f():
            out = []
            for i in range(5):
                if (y := tick(i) * 2) > 2 and (z := y + 1):
                    out.append((y, z))
                w = [last := k for k in range(i)]
            return out, y, z, last, w
    """,
    "else, break and continue": """
        def f():
            out = []
            for i in range(2, 9):
                for j in range(2, i):
                    if tick(i) % j == 0:
                        break
                else:
                    out.append(i)
                    continue
                while j < 5:
                    j += tick(2)
                    if j == 4:
                        break
                else:
                    out.append(-j)
            else:
                out.append("end")
            return out, i, j
    """,
    "break of the outer loop in an inner one's else": """
        def f():
            out = []
            for i in range(5):
                for j in range(i):
                    if tick(j) == 2:
                        break
                else:
                    if i == 4:
                        break
                    continue
                out.append((i, j))
                break
            return out, i
    """,
    "del": """
        def f():
            out, x = [], 0
            for i in range(4):
                x = tick(i)
                out.append(x)
                del x
            try:
                x
            except UnboundLocalError as error:
                out.append(type(error).__name__)
            a = {i: tick(i) for i in range(3)}
            for k in list(a):
                del a[tick(k)]
            return out, a
    """,
    "nested classes": """
        def f():
            out = []
            for i in range(3):
                class A:
                    k = tick(i)
                    def g(self):
                        return __class__.k, A.__qualname__
                out.append(A().g())
            return out
    """,
    "a loop in a class": """
        def f():
            class A:
                total = 0
                for i in range(4):
                    total += tick(i)
                    if i > 1:
                        late = i
            return A.total, A.i, A.late
    """,
    "super and __class__": """
        class A:
            def g(self, i):
                return i
        class B(A):
            def g(self, i):
                out = []
                for j in range(3):
                    out.append(super().g(tick(i + j)))
                    out.append(__class__.__name__)
                return out
        class C(B):
            def g(self, i):
                total = 0
                for j in range(3):
                    total += tick(j)
                return super().g(i), total
        def f():
            return B().g(1), C().g(2)
    """,
    "private names": """
        class _A:
            __k = 3
            def __init__(self):
                self.__x = 1
            def __h(self, __y):
                return __y + self.__x
            def g(self, **named):
                out = []
                for __i in range(3):
                    out.append(self.__h(tick(__i)) + self.__k)
                    self.__x += 1
                for i in range(3):
                    out.append(self.__h(tick(i)))
                return out, sorted(vars(self)), sorted(named)
        def f():
            return _A().g(__z=1)
    """,
    "generators": """
        def g(n):
            total = 0
            for i in range(n):
                got = yield tick(i)
                total += got or 0
            return total
        def h(n):
            total = yield from g(n)
            for i in range(3):
                tick(i)
            yield total
        def f():
            it, out = h(4), []
            out.append(next(it))
            for i in range(4):
                out.append(it.send(tick(i)))
            return out, [*g(3)]
    """,
    "asynchronous": """
        import asyncio
        async def ticks(n):
            for i in range(n):
                await asyncio.sleep(0)
                yield tick(i)
        class Opened:
            async def __aenter__(self):
                return self
            async def __aexit__(self, *error):
                return True
        async def g():
            out = []
            async for i in ticks(3):
                out.append(i)
            for i in range(4):
                async with Opened():
                    out.append(tick(i))
                    if i == 2:
                        raise ValueError
            out += [i async for i in ticks(3)]
            for i in range(3):
                out.append(tick(i))
            return out
        def f():
            return asyncio.run(g())
    """,
    "global and nonlocal": """
        count, table = 0, []
        def g():
            global count
            for i in range(3):
                count += tick(1)
            return count
        def h():
            n = 0
            def add():
                nonlocal n
                for i in range(3):
                    n += tick(i)
            for i in range(3):
                add()
                table.append(n)
            return n
        def f():
            return g(), h(), table[-2:], len(table) - table.clear.__self__.__len__()
    """,
    "stars": """
        def f(*given, **named):
            out = []
            for a, *b in [(1, 2, 3), (4,), (5, 6)]:
                *c, d = tick(a), *b
                [e, (*g, h)] = d, c or [0]
                out.append((a, b, c, d, e, g, h, *given, {**named}))
            for x[0] in range(3) if (x := [9]) else ():
                out.append(tick(x[0]))
            return out, x
    """,
    "targets that are attributes and items": """
        class A:
            pass
        def f():
            a, b = A(), [0, 0]
            for a.k, b[1] in enumerate("xyz"):
                b[0] += tick(a.k)
                a.k, b[1] = b[1], a.k
            return vars(a), b
    """,
    "comprehensions": """
        def f(k=(1, 2, 3)):
            out, i = [], 7
            for t in range(3):
                a = [tick(k) for k in k]
                b = {i: j for i in range(t) for j in (i, t)}
                c = sum(i * t for i in range(tick(3)))
                d = {(i, t) for i in a if i > t}
                out.append((a, b, c, sorted(d)))
            return out, k, i, t
    """,
    "closures that see the loop's variables": """
        def f():
            fs, gs, ks = [], [], []
            for i in range(3):
                fs.append(lambda: tick(i))
                gs.append(tick(i) + j for j in range(2))
                def k(i=i):
                    return i, t
                ks.append(k)
            t = 5
            return [g() for g in fs], [list(g) for g in gs], [k() for k in ks]
    """,
    "closures that change the loop's variables": """
        def f():
            n, out = 0, []
            def add(k):
                nonlocal n
                n += k
                return n
            for i in range(4):
                out.append(add(tick(i)))
                out.append(n)
            m = 0
            see = lambda: m
            for i in range(4):
                m = tick(i)
                out.append(see())
            return out, n, m
    """,
    "exec and eval": """
        def f():
            out, k = [], 3
            for i in range(3):
                out.append(eval("tick(i) + k"))
                exec("out.append(i)")
            names = {}
            exec("for i in range(3):\\n y = tick(i) * 2", {"tick": tick}, names)
            return out, names
    """,
    "locals": """
        def f(a=1):
            out = []
            for i in range(3):
                if i == 1:
                    late = tick(i)
                b = tick(i)
                out.append(sorted(locals()))
            out.append(sorted(k for k in range(b) if (s := k) > 0))
            return out, sorted(locals()), locals()["b"], "never" in locals()
            never = 1
    """,
    "locals, vars and dir": """
        def f(a=1):
            out = []
            for i in range(3):
                b = tick(i)
                out.append(sorted(locals()))
            return out, sorted(locals()), sorted(vars()), dir()
        def g():
            for i in range(3):
                tick(i)
            return sorted(locals())
    """,
    "match": """
        def f():
            out = []
            for v in (1, [2, 3, 4], {"a": 5, "b": 6}, "x", (7,), 3):
                match tick(v):
                    case int() as n if n > 2:
                        out.append(("int", n))
                    case [first, *rest]:
                        out.append((first, rest))
                    case {"a": a, **others}:
                        out.append((a, others))
                    case "x" | 1 as either:
                        out.append(either)
            return out, n, first, rest, a, others, either
    """,
    "with": """
        import contextlib
        def f():
            out, y = [], 9
            for i in range(4):
                with contextlib.suppress(ZeroDivisionError), contextlib.nullcontext(i) as k:
                    y = 6 // tick(k - 1)
                    out.append(("inside", y))
                out.append((y, k))
            return out
    """,
    "imports": """
        def f():
            for i in range(3):
                import os.path, string as s
                from math import floor as down, pi
                out = down(pi * tick(i)), s.digits[i]
            return out, os.path.basename("a/b")
    """,
    "while": """
        def f():
            n, out = 5, []
            while n:
                n -= tick(1)
                if n == 3:
                    continue
                out.append(n)
            while (n := n + tick(1)) < 4:
                pass
            return out, n
    """,
    "no steps": """
        def f():
            out, i = [], "before"
            for i in range(tick(0)):
                j = i
            for k in ():
                tick(k)
            try:
                j
            except UnboundLocalError:
                out.append("j")
            for _ in range(3):
                if tick(1) > 2:
                    j = 1
            return out, i, "j" in locals()
    """,
    "an object that nobody keeps": """
        import weakref
        class A:
            pass
        def f():
            refs = []
            for i in range(3):
                a = A()
                refs.append(weakref.ref(a))
                tick(i)
            a = None
            return [r() is None for r in refs]
    """,
    "recursion": """
        def f(n=3):
            out = []
            for i in range(n):
                out.append(f(i) if tick(i) else i)
            return out
    """,
    "methods of all kinds": """
        class A:
            k = 2
            @staticmethod
            def s(n):
                return [tick(i) for i in range(n)] + [tick(j) for j in range(2)]
            @classmethod
            def c(cls, n):
                out = []
                for i in range(n):
                    out.append(cls.k * tick(i))
                return out
            @property
            def p(self):
                total = 0
                for i in range(4):
                    total += tick(i)
                return total
            def __iter__(self):
                for i in range(3):
                    yield tick(i)
        def f():
            return A.s(3), A.c(3), A().p, [*A()]
    """,
}
# Their results depend on the frames of their callers, which include the compiler's in a loop's first run.
OF_PLACES = {
    "stack inspection": """
        import inspect, sys
        def where():
            return sys._getframe(1).f_lineno, sys._getframe(1).f_code.co_name, sys._getframe(2).f_code.co_name
        def f():
            out = []
            for i in range(4):
                out.append((tick(i), where(), inspect.currentframe().f_lineno, sys._getframe().f_code.co_name))
                out.append(sorted(sys._getframe().f_locals))
                out.append([one.function for one in inspect.stack()[:2]])
            return out
    """,
    "the stacklevel of warnings": """
        import warnings
        def old(level):
            warnings.warn("old", DeprecationWarning, stacklevel=level)
        def g():
            for i in range(3):
                old(1 + tick(i))
        def f():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                g()
            return [(str(one.message), one.lineno, one.filename[-10:]) for one in caught]
    """,
    "tracebacks": """
        import traceback
        def g(k):
            for i in range(5):
                if tick(i) == k:
                    raise ValueError(i)
        def f():
            out = []
            for k in range(3):
                try:
                    g(k)
                except ValueError as error:
                    out.append([(one.name, one.lineno) for one in traceback.extract_tb(error.__traceback__)])
            return out
    """,
    "line events": """
        import sys
        def g():
            total = 0
            for i in range(3):
                total += tick(i)
            return total
        def f():
            events = []
            def see(frame, event, argument):
                if frame.f_code.co_name == "g":
                    events.append((event, frame.f_lineno))
                return see
            before = sys.gettrace()
            sys.settrace(see)
            try:
                g()
            finally:
                sys.settrace(before)
            return events
    """,
}
CALLS = 5
if sys.version_info < (3, 10):
    del PROGRAMS["match"]


def results(namespace):
    with torch.no_grad():
        return [repr(namespace["f"]()) for _ in range(CALLS)]


def as_it_is(name, filename):
    """Return the results of the program's calls in Python."""
    namespace = {"__name__": "program", "tick": lambda value: value}
    exec(compile(textwrap.dedent({**PROGRAMS, **OF_PLACES}[name]), filename, "exec"), namespace)
    return results(namespace)


@pytest.mark.parametrize(
    ("name", "how"), [*itertools.product(PROGRAMS, branches.WAYS[1:]), *itertools.product(OF_PLACES, ["untaken"])]
)
def test_loops_of_every_kind(name, how):
    text = textwrap.dedent({**PROGRAMS, **OF_PLACES}[name])
    namespace = {"__name__": "program", "tick": lambda value: value}
    code, _ = branches.with_branches(ast.parse(text), "program.py", namespace, how)
    exec(code, namespace)
    assert results(namespace) == as_it_is(name, "program.py")


@needs_backend
@pytest.mark.parametrize("name", [*PROGRAMS, "line events"])
def test_loops_of_every_kind_over_time(name, found, tmp_path, monkeypatch):
    """Each step calls a neuron, so the loops are loops over time: they run compiled or in Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "program_of_a_kind.py"
    file.write_text(textwrap.dedent({**PROGRAMS, **OF_PLACES}[name]))
    linecache.checkcache(str(file))
    specification = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(specification)
    lif, x = snn.Leaky(beta=0.5, init_hidden=True), torch.ones(1, 2)

    def tick(value):
        lif(x)
        return value

    module.tick = tick
    specification.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, file.stem, module)
    snn.auto()
    found.adopt(module)
    assert results(vars(module)) == as_it_is(name, str(file))
    print(found)
