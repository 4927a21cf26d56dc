"""Programs behave the same with branches in front of their loops."""

import ast
import copy
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import branches

from snnipu.compiler import outline


def run(source, *, call="f", arguments=()):
    """Run a program without branches, with branches that are not taken, and with branches that are taken.

    Returns:
        For each of the three, the results, or type and line of the error. Then the number of branches.
    """
    outcomes, text, count = [], textwrap.dedent(source), 0
    for how in branches.WAYS:
        namespace = {"__name__": "program"}
        code = compile(text, "program.py", "exec")
        if how != "plain":
            code, loops = branches.with_branches(ast.parse(text), "program.py", namespace, how)
            count = len(loops)
        try:
            exec(code, namespace)
            result = namespace[call](*copy.deepcopy(arguments)) if call else None
        except Exception as error:
            trace = error.__traceback__
            while trace.tb_next is not None:
                trace = trace.tb_next
            result = type(error), trace.tb_lineno
        plain = {k: v for k, v in namespace.items() if not k.startswith("__") and isinstance(v, (int, list, str, dict))}
        outcomes.append((result, plain))
    return outcomes, count


def assert_all_are_alike(outcomes):
    assert outcomes[1:] == outcomes[:1] * (len(outcomes) - 1)


PROGRAMS = {
    "carried": "def f(n=4):\n a = 1\n for i in range(n):\n  a = abs(a * 2 - i)\n return a, i",
    "no iteration": "def f():\n y = 5\n for i in range(0):\n  y = abs(i)\n return y",
    "never bound": "def f():\n for i in range(0):\n  y = abs(i)\n return y",
    "bound by the first batch": (
        "def f():\n out = []\n for b in range(3):\n  for t in range(2):\n   if b > 0:\n    out.append(prev)\n"
        "   prev = abs(b * 10 + t)\n return out"
    ),
    "break and else": (
        "def f():\n found = None\n for i in range(9):\n  if abs(i) == 4:\n   found = i\n   break\n else:\n"
        "  found = -1\n return found, i"
    ),
    "steps that are computed": (
        "def f(x=(3, 5), n=2):\n s = 0\n for i in range(abs(min(x)) - n, max(x)):\n  s += abs(i)\n  x = n = 0\n"
        " return s, i, x, n"
    ),
    "an error in the steps": "def f():\n s = 0\n for i in range(abs('a')):\n  s += abs(i)\n return s",
    "functions inside with names of their own": (
        "def f():\n def add(s, t):\n  i = s + abs(t)\n  return i\n s = 0\n for i in range(3):\n  s = add(s, i)\n"
        " return s, i"
    ),
    "closure changes what the loop does not know": (
        "def f():\n s = 0\n def add(t):\n  nonlocal s\n  s += t\n for t in range(3):\n  add(abs(t))\n return s"
    ),
    "while": "def f():\n n, s = 5, 0\n while n:\n  s += abs(n)\n  n -= 1\n return s, n",
    "nested": (
        "def f():\n rec = []\n for t in range(3):\n  s = 0\n  for k in range(t):\n   s += abs(k)\n  rec.append(s)\n"
        " return rec, s, t"
    ),
    "list of the caller": "def f():\n rec = []\n for t in range(3):\n  rec.append(abs(t))\n return rec",
    "comprehension": "def f():\n k = 7\n for t in range(3):\n  a = [abs(k) for k in range(t)]\n return a, k",
    "augmented": "def f():\n x = [0, 0]\n for t in range(4):\n  x[t % 2] += abs(t)\n return x",
    "annotated": "def f():\n a = 1\n for t in range(4):\n  a: int = abs(a * 2 - t)\n  b: int\n return a, t",
    "annotated before": ("def f():\n a = 1\n for t in range(4):\n  c: int = abs(a)\n  a: int = c + t\n return a, c\n"),
    "declared alone": "def f():\n b = 3\n for t in range(0):\n  b: int\n  b = abs(t)\n return b",
    "error in the loop": "def f():\n for t in range(3):\n  a = abs(t)\n  b = 1 // (t - 1)\n return b",
    "module": "f = None\ntotal: int = 0\nfor t in range(4):\n s = abs(t)\n total += s\n",
    "module, functions read": (
        "def g():\n global n\n n = t * 2\n return n\nrec = []\nfor t in range(4):\n rec.append(g())\n"
        "f = lambda: (rec, n, t)"
    ),
    "with": (
        "import contextlib\ndef f():\n out = 0\n for t in range(3):\n  with contextlib.suppress(ZeroDivisionError):\n"
        "   y = abs(1 // t)\n   out += y\n return out, y"
    ),
    "try": (
        "def f():\n y = 9\n for t in range(3):\n  try:\n   y = abs(1 // t)\n  except ZeroDivisionError:\n"
        "   y = 3\n return y, t"
    ),
    "outer variable": (
        "def g():\n k = 3\n def h():\n  s = 0\n  for t in range(4):\n   s += abs(k - t)\n  return s\n return h()\nf = g"
    ),
    "private names": (
        "class A:\n def __init__(self):\n  self.__x = 2\n def g(self):\n  s = 0\n  for t in range(3):\n"
        "   s += abs(self.__x)\n  return s\ndef f():\n return A().g()"
    ),
    "private names in a function of a method": (
        "class A:\n def __init__(self):\n  self.__x = 2\n def g(self):\n  def h():\n   s = 0\n   for t in range(3):\n"
        "    s += abs(self.__x)\n   return s\n  return h()\ndef f():\n return A().g()"
    ),
    "walrus": "def f():\n for t in range(3):\n  if (y := abs(t)) > 1:\n   z = y\n return y, z",
    "with, and what stays where it leaves early": (
        "import contextlib\ndef f():\n y, out = 9, 0\n for t in range(3):\n"
        "  with contextlib.suppress(ZeroDivisionError):\n   y = abs(1 // t)\n  out += y\n return out, y"
    ),
    "while without a step": (
        "def f():\n y, out = 9, []\n for t in range(3):\n  k = abs(t)\n  while k:\n   y = k\n   k -= 1\n"
        "  out.append(y)\n return out"
    ),
    "bound in a branch before": (
        "def f(n=0):\n out = []\n if n:\n  y = 1\n for t in range(3):\n  if abs(t) > 0:\n   out.append(y)\n  y = t\n"
        " return out"
    ),
    "nothing is kept": (
        "import weakref\nclass A:\n pass\ndef f():\n for t in range(2):\n  a = A()\n r = weakref.ref(a)\n a = None\n"
        " return int(r() is None)"
    ),
    "break of the loop around it": (
        "def f():\n for t in range(3):\n  for u in range(2):\n   abs(u)\n  else:\n   if t:\n    break\n return t"
    ),
    "continue of the loop around it": (
        "def f():\n s = 0\n for t in range(3):\n  while s > 9:\n   abs(s)\n  else:\n   continue\n  s += 1\n return s"
    ),
    "names of a comprehension that are read before": (
        "def f(k=(1, 2)):\n for t in range(3):\n  a = [abs(k) for k in k]\n return a, k"
    ),
    "a generator that is consumed": (
        "def f():\n k, s = 1, 0\n for t in range(3):\n  s = sum(k + abs(i) for i in range(t))\n  k += t\n"
        "  r = [*(k + i for i in range(2))], ' '.join(str(k) for _ in range(2))\n return s, k, r"
    ),
    "stars": (
        "def f():\n a, *b, c = 1, 2, 3, 4\n for x, *y in [(1, 2, 3), (4,)]:\n  *b, c = abs(x), *b, c\n  [a, *_] = b\n"
        " return a, b, c, x, y"
    ),
    "deleted before": "def f():\n y = 5\n del y\n for t in range(2):\n  if abs(t):\n   y = t\n return y",
    "without a value in a function around it": (
        "def f():\n def g(n):\n  for t in range(3):\n   if t > n:\n    return_it = abs(late)\n  return t\n r = g(9)\n"
        " late = 5\n return r, late"
    ),
    "else of a loop in a loop": (
        "def f():\n out = []\n for t in range(4):\n  for u in range(t):\n   if abs(u) == 2:\n    break\n  else:\n"
        "   out.append(t)\n   while len(out) > 2:\n    out.pop()\n    break\n return out"
    ),
    "unpacking": (
        "def f():\n a, b = 1, 2\n for t, (u, v) in enumerate([(1, 2), (3, 4)]):\n"
        "  a, b = b, abs(a + u * v)\n return a, b, u"
    ),
}


# Programs whose loops may have no branch.
MAY_STAY = {
    "break and else",
    "while",
    "module, functions read",
    "break of the loop around it",
    "continue of the loop around it",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_did(name):
    outcomes, count = run(PROGRAMS[name], call=None if name == "module" else "f")
    assert count or name in MAY_STAY
    assert_all_are_alike(outcomes)


REFUSED = {
    "an annotation in a module": "for t in range(3):\n s: int = abs(t)\ndef f():\n return s, t, __annotations__",
    "a caught error has a name": (
        "def f():\n found = None\n for t in range(3):\n  try:\n   y = abs(1 // t)\n  except ZeroDivisionError as e:\n"
        "   found = str(e)\n return found, y"
    ),
    "its class": (
        "class A:\n k = 3\n def g(self):\n  s = 0\n  for t in range(3):\n   s += abs(__class__.k)\n  return s\n"
        "def f():\n return A().g()"
    ),
    "a function by another name": "def f():\n g = 0\n for t in range(2):\n  g = list(map(eval, ['1']))\n return g",
    "a private keyword": (
        "class A:\n def h(self, **k):\n  return list(k)\n def g(self):\n  for t in range(3):\n"
        "   k = self.h(__x=abs(t))\n  return k\ndef f():\n return A().g()"
    ),
    "a generator that is kept": (
        "def f():\n k, gs = 1, []\n for t in range(3):\n  gs.append(k + abs(i) for i in range(2))\n k = 5\n"
        " return [list(g) for g in gs]"
    ),
    "a generator sees it": (
        "def f():\n k, out = 1, []\n g = (k * i for i in range(9))\n for t in range(3):\n  k = abs(t)\n"
        "  out.append(next(g))\n return out"
    ),
    "locals is a variable": "def f(locals=3):\n for t in range(3):\n  y = abs(locals)\n return y",
    "import of all names": "for t in range(3):\n abs(t)\n from math import *\ndef f():\n return floor(2.5)",
    "return": "def f():\n for t in range(3):\n  if abs(t) == 2:\n   return t",
    "yield": "def g():\n for t in range(3):\n  yield abs(t)\ndef f():\n return list(g())",
    "delete": "def f():\n for t in range(3):\n  y = abs(t)\n  del y",
    "backward": "def f():\n for t in range(3):\n  abs(t)\n  t.backward()",
    "locals": "def f():\n for t in range(3):\n  y = abs(t)\n return locals()",
    "closure changes it": (
        "def f():\n s = 0\n def add(t):\n  nonlocal s\n  s += t\n for t in range(3):\n  add(abs(t))\n  s += 1\n"
        " return s"
    ),
    "a sibling changes what the loop reads": (
        "def f():\n n, out = 0, []\n def bump():\n  nonlocal n\n  n += 1\n def h():\n  for t in range(3):\n   bump()\n"
        "   out.append(abs(n))\n h()\n return out"
    ),
    "a private global": (
        "_A__k = 2\nclass A:\n def g(self):\n  s = 0\n  for t in range(3):\n   s += abs(__k)\n  return s\n"
        "def f():\n return A().g()"
    ),
    "closure sees it": (
        "def f():\n s = 0\n g = lambda: s\n out = []\n for t in range(3):\n  s = abs(t)\n  out.append(g())\n return out"
    ),
    "global": "s = 0\ndef f():\n global s\n for t in range(3):\n  s = abs(t)\n return s",
    "a function made in the loop": (
        "def f():\n fs = []\n for t in range(3):\n  fs.append(lambda: t)\n return [g() for g in fs]"
    ),
    "a function made in the loop sees what comes later": (
        "def f():\n k, fs = 1, []\n for t in range(3):\n  fs.append(lambda: k)\n k = abs(5)\n return [g() for g in fs]"
    ),
    "no call": "def f():\n s = 0\n for t in (1, 2):\n  s = s + t\n return s",
    "super": (
        "class A:\n def g(self):\n  return 1\nclass B(A):\n def g(self):\n  s = 0\n  for t in range(3):\n"
        "   s += super().g()\n  return s\ndef f():\n return B().g()"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_the_same_stays(name):
    outcomes, count = run(REFUSED[name])
    assert not count
    assert_all_are_alike(outcomes)


def test_lines_and_names_in_tracebacks_stay():
    text = (
        '"""Text."""\nfrom __future__ import annotations\ndef f():\n "Told."\n for t in range(3):\n  y = abs(1 // t)\n'
    )
    for how in branches.WAYS[1:]:
        namespace = {}
        code, (loop,) = branches.with_branches(ast.parse(text), "program.py", namespace, how)
        exec(code, namespace)
        assert loop.label == "program.py:5 (f)"
        with pytest.raises(ZeroDivisionError) as error:
            namespace["f"]()
        assert (error.traceback[-1].name, error.traceback[-1].lineno) == ("f", 5)  # counted from 0
        assert (namespace["__doc__"], namespace["f"].__doc__) == ("Text.", "Told.")


NAMES = st.sampled_from("abcd")
SIMPLE = st.one_of(
    st.tuples(NAMES, NAMES, NAMES).map(lambda n: f"{n[0]} = abs({n[1]} - {n[2]}) + 1"),
    st.tuples(NAMES, NAMES).map(lambda n: f"{n[0]} += {n[1]}"),
    NAMES.map(lambda n: f"out.append({n})"),
    st.tuples(NAMES, st.integers(0, 3)).map(lambda n: f"if {n[0]} % 3 == {n[1]}: continue"),
    st.tuples(NAMES, st.integers(0, 9)).map(lambda n: f"if {n[0]} == {n[1]}: break"),
)


def _indent(lines):
    return [" " + line for line in lines]


BLOCK = st.recursive(
    st.lists(SIMPLE, min_size=1, max_size=4),
    lambda inner: st.one_of(
        st.tuples(st.integers(0, 3), NAMES, inner).map(lambda p: [f"for {p[1]} in range({p[0]}):", *_indent(p[2])]),
        st.tuples(NAMES, inner, inner).map(lambda p: [f"if {p[0]} > 2:", *_indent(p[1]), "else:", *_indent(p[2])]),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sets(NAMES), st.lists(BLOCK, min_size=1, max_size=4))
def test_random_programs_do_what_they_did(bound, blocks):
    lines = ["out = []", *(f"{name} = {place + 1}" for place, name in enumerate(sorted(bound)))]
    lines += ["for i in range(2):", *_indent([line for block in blocks for line in block])]
    source = "\n".join(["def f(out):", *_indent(lines), " return out, i"])
    outcomes, _ = run(source, arguments=([],))
    if isinstance(outcomes[0][0][0], type):
        outcomes.pop()  # a variable without a value: such a loop runs in Python
    assert_all_are_alike(outcomes)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("print(t)", 2),
        ("if t: print(t)", None),
        ("if print(t): pass", 2),
        ("if t:\n  pass\n else:\n  print(t)", None),
        ("y = print(t) if t else 0", None),
        ("if t:\n  loss.backward()", 3),
        ("if t:\n  optimizer.zero_grad()", 3),
        ("if t:\n  return", 3),
        ("if t:\n  x = locals()", 3),
        ("f(t)\n if t: bar.update()\n bar.update()", 4),
        ("try: f(t)\n except E: g(t)", None),
        ("try: f(t)\n except E as e: g(t)", 3),
        ("y = [f(a) async for a in t]", 2),
    ],
)
def test_what_ends_every_graph(body, line):
    """Inside an ``if`` fewer statements end every graph."""
    assert outline.obstacle(ast.parse(f"for t in x:\n {body}").body[0]) == line
