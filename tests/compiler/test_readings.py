"""Random programs that read the step's number and arguments in Python: compiled and in Python."""

import linecache
import os
import random
import textwrap

import numpy as np
import pytest
import torch
from support import readings
from support.exact import exact, exact_numbers
from support.versions import needs_backend

import snnipu as snn

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
PROGRAMS = int(os.environ.get("SNNIPU_READINGS_EXAMPLES", "6"))


def executed(source, filename, namespace):
    """Execute a source, which tracebacks find by this file name."""
    linecache.cache[filename] = len(source), None, source.splitlines(True), filename
    exec(compile(source, filename, "exec"), namespace)
    return namespace


def outcome(program, *arguments):
    try:
        result, record, total = program.run(*arguments)
    except Exception as error:
        return type(error)
    return result.detach(), [(type(one), one) for one in record], (type(total), total)


def assert_alike(actual, expected):
    if isinstance(expected, type):
        assert actual is expected
        return
    assert not isinstance(actual, type), actual
    assert actual[1:] == expected[1:]
    assert actual[0].dtype == expected[0].dtype
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_graph_is_for_what_python_has_read(seed, found):
    program = readings.Writer(seed)
    print(program.text())
    namespace = executed(program.source, f"<reading {seed}>", program.namespace())
    net, x = exact(readings.Net()), exact_numbers(readings.STEPS, readings.BATCH, readings.INPUTS)
    expected = [outcome(program, namespace, net, x, value) for value in program.values]
    call = snn.compile(namespace["outer" if program.carrier == "held" else "f"])
    outcomes = [outcome(program, namespace, net, x, value, call) for value in program.values]
    print(found)
    for actual, wanted in zip(outcomes, expected):
        assert_alike(actual, wanted)


def test_programs_do_not_end_in_errors():
    """A test that compares an error with the same error would prove nothing."""
    net, x = exact(readings.Net()), exact_numbers(readings.STEPS, readings.BATCH, readings.INPUTS)
    sources = set()
    for seed in range(200):
        program = readings.Writer(seed)
        namespace = program.namespace()
        exec(program.source, namespace)
        outcomes = [outcome(program, namespace, net, x, value) for value in program.values]
        assert not [one for one in outcomes if isinstance(one, type)], program.text()
        sources.add(program.source)
    assert len(sources) > 190


GENERATORS = {
    "random.Random": lambda: random.Random(3),
    "numpy.random.Generator": lambda: np.random.default_rng(3),
    "numpy.random.RandomState": lambda: np.random.RandomState(3),
}
DRAWS = {
    "random": "rng.random()",
    "uniform": "rng.uniform(0.0, 2.0)",
    "an integer": "(rng.randint(0, 3) if hasattr(rng, 'randint') else rng.integers(0, 4))",
    "a decision": "(rng.random() < 0.5)",
    "a tensor": "torch.tensor(rng.random())",
    "one that is made in the loop": "random.Random(t).random()",
}


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("name", GENERATORS)
def test_numbers_of_a_generator_of_the_programs(name, draw, found):
    """Each call has the loop's numbers, in its order and dtype. The generator ends in the same state."""
    draws = DRAWS[draw]
    if name.endswith("RandomState"):
        draws = draws.replace("rng.random()", "rng.random_sample()")
    source = textwrap.dedent(f"""
        def f(net, x):
            mem, out = net.lif.init_leaky(), []
            for t in range(len(x)):
                spk, mem = net.lif(net.fc(x[t]) + {draws}, mem)
                out.append(mem)
            return torch.stack(out)
    """)
    net, x, calls = exact(readings.Net()), exact_numbers(readings.STEPS, readings.BATCH, readings.INPUTS), []
    for compiled in (False, True):
        namespace = {"rng": GENERATORS[name](), "torch": torch, "random": random}
        call = executed(source, f"<draws {name} {draw}>", namespace)["f"]
        call = snn.compile(call) if compiled else call
        results = [call(net, x).detach() for _ in range(4)]
        calls.append([*results, torch.tensor(namespace["rng"].uniform(0.0, 1.0))])
    for actual, expected in zip(*calls):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
