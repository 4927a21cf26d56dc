import pytest
import torch

from benchmarks import Case, Check, Contender, Unavailable, Workload, run_case


@pytest.fixture(autouse=True)
def one_thread():
    """Small steps on several threads mostly wait for each other, for long where other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def contender(name, passed=True, raises=None, peer=None, **fields):
    """A contender that allocates 4 KiB a step, and counts its steps in ``contender.steps``."""
    steps = []

    def build():
        if raises is not None:
            raise raises

        def step():
            steps.append(name)
            return torch.empty(1024)

        return Workload(step, lambda: Check(passed, "a reference", f"detail of {name}", {"error": float("inf")}))

    fields.setdefault("ratio_label", "" if peer else name)
    result = Contender(name, f"label of {name}", build, peer=peer, **fields)
    object.__setattr__(result, "steps", steps)
    return result


def make_case(*contenders):
    return Case("case", "Title of the case", "Caption of the case.", list(contenders))


@pytest.fixture
def make_contender():
    return contender


@pytest.fixture
def run():
    """Run a case of the given contenders, quickly."""

    def run(*contenders, peers=("snntorch", "norse", "compile", "spikingjelly"), **arguments):
        arguments = {"repeats": 2, "min_seconds": 0.0, **arguments}
        return run_case(make_case(*contenders), peers, torch.device("cpu"), **arguments)

    return run


@pytest.fixture
def mixed_result(run):
    """One row of every kind: own, reference peer, red, not installed, raising."""
    return run(
        contender("own", note="a note of its own"),
        contender("snntorch", peer="snntorch"),
        contender("wrong", peer="compile", passed=False),
        contender("absent", peer="norse", raises=Unavailable('not installed: pip install "snnipu[bench]"')),
        contender("raising", peer="spikingjelly", raises=TypeError("no float16\n  here")),
    )
