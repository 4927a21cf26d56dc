"""README, CONTRIBUTING and docs: their code runs, their links work, their names exist."""

import importlib
import inspect
import pydoc
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import cookbook_pictures
import does_not_spike
import logo
import pytest
import snntorch
import start_here
import torch
from support.operators import needs_host_runtime

import snnipu
from snnipu import compiler, datasets, equations, neurons, ops, poptorch, surrogate
from snnipu.cli import COMMANDS
from snnipu.cli import main as command_line
from snnipu.neurons import sparse_benchmark
from snnipu.training import low_activity

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*$")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def text_of(page):
    return page.read_text(encoding="utf-8")


def blocks(page, language):
    """Return a page's code blocks of a language, without those marked ``<!-- not run: why -->`` and a list's indent."""
    text = text_of(page)
    fences = [match for match in FENCE.finditer(text) if match.group(2) == language]
    fences = [match for match in fences if not NOT_RUN.search(text[: match.start()])]
    return [re.sub(f"^{match.group(1)}", "", match.group(3), flags=re.MULTILINE) for match in fences]


def run_block(page, number, code, namespace):
    exec(compile(code, f"{name_of(page)}, block {number}", "exec"), namespace)


def test_what_explain_prints_is_what_the_page_shows(tmp_path, capsys):
    page = ROOT / "docs" / "how-to" / "explain-a-loop.md"
    if compiler.backend.version() < compiler.backend.OLDEST:
        pytest.skip("this PyTorch is too old for the compiler")
    code = next(block for block in blocks(page, "python") if "explain(" in block)
    (shown,) = blocks(page, "text")
    script = tmp_path / "recurrent.py"
    script.write_text(code, encoding="utf-8")
    torch._dynamo.reset()
    runpy.run_path(str(script))
    # The number of nodes depends on PyTorch.
    numbers = re.compile(r"\d+\.\d+ s|\d+ nodes before, \d+ after")
    assert numbers.sub("...", capsys.readouterr().out) == numbers.sub("...", shown)


def test_the_gallery_has_every_picture():
    shown = [link.split(")")[0] for link in text_of(ROOT / "docs" / "gallery.md").split("](")[1::2]]
    shown = {(ROOT / "docs" / link).resolve() for link in shown}
    drawn = {path for folder in ("docs", "benchmarks/results") for path in (ROOT / folder).rglob("*.png")}
    assert shown == drawn


def test_the_pictures_of_start_here_are_what_the_script_draws():
    for name, drawing in start_here.pictures().items():
        assert text_of(ROOT / "docs" / name) == drawing, f"run python docs/start_here.py: docs/{name} differs"


def test_a_network_that_does_not_spike_does_so_after_the_change_of_the_page():
    rows = does_not_spike.report()
    assert [row.name for row in rows] == ["1, before", "3, before", "1, after", "3, after"]
    assert [bool(row.hint) for row in rows] == [True, True, False, False]


def test_the_logo_is_what_the_script_draws():
    assert text_of(logo.LOGO) == logo.drawing(), "run python docs/logo.py: docs/logo.svg differs"


def test_gains_of_start_here_are_those_of_the_readme():
    benchmark = text_of(ROOT / "README.md").split("<!-- benchmark:begin -->")[1].split("<!-- benchmark:end -->")[0]
    quoted = set(re.findall(r"[\d.]*\d", benchmark))
    pages = [text_of(ROOT / "docs" / "start-here.md"), *start_here.pictures().values()]
    gains = [
        gain for page in pages for pair in re.findall(r"([\d.]*\d)(?: to ([\d.]*\d))? ×", page) for gain in pair if gain
    ]
    assert len(gains) > 10
    assert [gain for gain in gains if gain not in quoted] == []


def test_guarantees_name_tests_that_exist():
    text = text_of(ROOT / "docs" / "reference" / "guarantees.md")
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}" in text_of(ROOT / "tests" / file), (file, test)


WITH_PYTHON = [page for page in PAGES if blocks(page, "python") and page.parent.name != "cookbook"]
WITH_DIFF = [page for page in PAGES if blocks(page, "diff")]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_python_code_runs(page, tmp_path, monkeypatch):
    """A page's blocks run in order, as one script."""
    if "datasets" in "".join(blocks(page, "python")):
        pytest.importorskip("sklearn")
    if "nir" in page.name:
        pytest.importorskip("nir")
    if not hasattr(poptorch, "is_host_runtime") and "poptorch" in text_of(page):
        pytest.skip("a real PopTorch is installed, which has no operators of ours yet")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, code in enumerate(blocks(page, "python"), start=1):
        run_block(page, number, code, namespace)


@pytest.mark.slow
@pytest.mark.parametrize("name", cookbook_pictures.PICTURES)
def test_recipes_print_what_they_show(name, tmp_path, monkeypatch):
    """A recipe's code runs and prints the words of its page, with numbers within a fifth. Its picture can be drawn."""
    code = "".join(cookbook_pictures.blocks(name, "python"))
    for package, word in (
        ("matplotlib", ""),
        ("sklearn", "digits()"),
        ("nir", "import nir"),
        ("neurobench", "neurobench"),
    ):
        if word in code:
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNNIPU_DATA", raising=False)
    threads = torch.get_num_threads()
    try:
        values, printed = cookbook_pictures.run(name)
    finally:
        torch.set_num_threads(threads)
    number = re.compile(r"[\d,]*\d(?:\.\d+)?")
    texts = printed, "".join(cookbook_pictures.blocks(name, "text"))
    words = [number.sub("", text).split() for text in texts]
    assert words[0] == words[1]
    printed_numbers, shown = ([float(part.replace(",", "")) for part in number.findall(text)] for text in texts)
    assert printed_numbers == pytest.approx(shown, rel=0.2, abs=0.05)
    cookbook_pictures.PICTURES[name](values).savefig("picture.png")


@pytest.mark.parametrize("name", cookbook_pictures.PICTURES)
def test_recipes_are_short(name):
    assert len(text_of(cookbook_pictures.FOLDER / f"{name}.md").splitlines()) < 100
    assert f"]({name}.md)" in text_of(cookbook_pictures.FOLDER / "index.md")
    assert (cookbook_pictures.FOLDER / f"{name}.png").stat().st_size <= 60_000
    assert f"]({name}.png)" in text_of(cookbook_pictures.FOLDER / f"{name}.md")


@pytest.mark.parametrize("page", WITH_DIFF, ids=name_of)
def test_drop_in_diffs_change_one_import_and_no_spike(page):
    for number, diff in enumerate(blocks(page, "diff"), start=1):
        lines = diff.splitlines()
        assert [line for line in lines if line.startswith("-")] == ["-import snntorch as snn"]
        assert [line for line in lines if line.startswith("+")] == ["+import snnipu as snn"]
        spikes = []
        for sign in "-+":
            torch.manual_seed(0)
            namespace = {}
            run_block(page, number, "\n".join(line[1:] for line in lines if line[:1] in ("", " ", sign)), namespace)
            spikes.append(torch.stack(namespace["spikes"]))
        assert spikes[0].any()
        assert torch.equal(*spikes)


def test_main_pages_have_code():
    assert {"README.md", "docs/how-to/speed-up.md", "docs/explanation/gradient.md"} <= set(map(name_of, WITH_PYTHON))
    assert {"README.md", "docs/how-to/port-from-snntorch.md"} == set(map(name_of, WITH_DIFF))


def options_of(command, capsys):
    """Return the options that ``python -m snnipu COMMAND --help`` shows."""
    with pytest.raises(SystemExit) as stopped:
        command_line([command, "--help"])
    assert stopped.value.code == 0
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))


def command_lines(page):
    """Return the arguments of ``python -m snnipu`` in shell blocks and in code within sentences."""
    text = text_of(page)
    shell = re.findall(r"^(?:\w+=\S+ )*python -m snnipu(.*)$", "\n".join(blocks(page, "sh")), re.MULTILINE)
    return shell + re.findall(r"`python -m snnipu([^`\n]*)`", FENCE.sub("", text))


def test_commands_and_options_exist(capsys):
    known = {command: options_of(command, capsys) for command in COMMANDS}
    known["--version"] = known["COMMAND"] = set()
    named = set()
    for page in PAGES:
        for line in command_lines(page):
            command, *words = shlex.split(line.translate({ord("["): " ", ord("]"): " "}), comments=True) or ["COMMAND"]
            assert command in known, (name_of(page), line)
            if command == "run":  # further arguments belong to the script
                scripts = [place for place, word in enumerate(words) if word in ("SCRIPT", "script.py")]
                words = words[: scripts[0]] if scripts else words
            assert {word for word in words if word.startswith("-") and word != "-"} <= known[command], line
            named.add(command)
    assert set(COMMANDS) <= named


def test_options_named_beside_a_command_exist(capsys):
    """Options in running text belong to some command."""
    known = set().union(*(options_of(command, capsys) for command in COMMANDS)) | {"--version", "--editable"}
    known |= set(re.findall(r'add\("(--[a-z-]+)"', text_of(ROOT / "benchmarks" / "__main__.py")))
    for page in PAGES:
        for option in re.findall(r"`(--[a-z][a-z-]*)", text_of(page)):
            assert option in known, (name_of(page), option)


def heading_anchors(page):
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^\((\w+)\)=$", text_of(page), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", text_of(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert not link.startswith("/"), link
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert ROOT in target.resolve().parents, link
        if anchor:
            assert anchor in heading_anchors(target), link


def test_pages_are_short():
    lines = {name_of(page): len(text_of(page).splitlines()) for page in DOCS if page.parent.name != "reference"}
    one_screen = {f"docs/how-to/{name}.md" for name in ("compile", "port-from-snntorch", "speed-up")}
    assert {name: count for name, count in lines.items() if count > (75 if name in one_screen else 150)} == {}


def test_every_page_is_in_one_group_of_the_navigation():
    listed = [ROOT / "docs" / "index.md"]
    for page in DOCS:
        for contents in re.findall(r"```{toctree}\n(.*?)```", text_of(page), re.DOTALL):
            listed += [page.parent / f"{line}.md" for line in contents.splitlines() if re.fullmatch(r"[\w/-]+", line)]
    # Sphinx makes the pages of the tutorials from notebooks.
    assert sorted(page for page in listed if page.parent.name != "tutorials" or page.stem == "index") == DOCS


def test_what_the_layout_names_exists():
    (layout,) = blocks(ROOT / "docs" / "explanation" / "architecture.md", "text")
    for line in layout.splitlines():
        path = ROOT / line.split()[0]
        assert path.is_dir() if line.split()[0].endswith("/") else path.is_file(), line


def test_environment_variables_are_read_somewhere():
    sources = [ROOT / "setup.py", ROOT / "Makefile", ROOT / ".ci" / "run"]
    for folder in ("snnipu", "tests", "tutorials"):
        sources += [path for path in (ROOT / folder).rglob("*.py") if path.name != Path(__file__).name]
    code = "".join(map(text_of, sources))
    named = {
        name for page in PAGES for name in re.findall(r"\b(?:SNNIPU|POPTORCH)_[A-Z_]+\b", FENCE.sub("", text_of(page)))
    }
    named -= {"SNNIPU_LIF_SEQUENCE_FWD", "SNNIPU_LIF_SEQUENCE_BWD", "SNNIPU_"}
    assert "SNNIPU_REQUIRE_NATIVE" in named
    assert [name for name in sorted(named) if name not in code] == []
    listed = text_of(ROOT / "docs" / "reference" / "environment.md")
    read = set(re.findall(r"environ(?:\.get\(|\[)\"(SNNIPU_\w+|POPTORCH_\w+)\"", code))
    assert [name for name in sorted(read) if name not in listed] == []


def test_extras_and_make_targets_exist():
    extras = set(re.findall(r"^(\w+) = \[", text_of(ROOT / "pyproject.toml").split("optional-dependencies]")[1], re.M))
    targets = set(re.findall(r"^([\w-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    for page in PAGES:
        for names in re.findall(r"\.\[([\w,]+)\]", text_of(page)):
            assert set(names.split(",")) <= extras, (name_of(page), names)
        for target in re.findall(r"`make (\w[\w-]*)", text_of(page)):
            assert target in targets, (name_of(page), target)


def test_nothing_is_installed_from_an_index_by_name():
    """The package is not on an index: pages install it from a clone."""
    for page in PAGES:
        assert not re.search(r"pip install \S*snnipu", text_of(page)), name_of(page)


def test_readme_is_short_and_marked():
    text = text_of(ROOT / "README.md")
    assert len(text.splitlines()) <= 185
    for mark in ("benchmark", "status"):
        assert text.count(f"<!-- {mark}:begin -->") == text.count(f"<!-- {mark}:end -->") == 1


@needs_host_runtime
def test_poptorch_page_names_what_there_is():
    page = text_of(ROOT / "docs" / "reference" / "poptorch.md")
    words = set(re.findall(r"\w+", page))
    modules = {"custom_ops", "enums", "ops", "optim", "options", "poptorch_core", "print", "profiling", "testing"}
    assert [name for name in poptorch.__all__ if name not in words | modules | {"__version__", "is_host_runtime"}] == []
    groups = ("Distributed", "Jit", "Precision", "TensorLocations", "Training")
    options = poptorch.Options()
    methods = {name: options for name in dir(type(options)) if callable(getattr(type(options), name))}
    for group in groups:
        if group != "TensorLocations":  # accepted as a whole
            group_type = type(getattr(options, group))
            methods.update({name: group_type for name in vars(group_type) if callable(getattr(group_type, name))})
    inherited = {*dir(type(options).__mro__[1]), "defaultOutputMode"}
    public = [name for name in sorted(methods) if not name.startswith("_") and name not in inherited]
    assert [name for name in public if name not in words] == []
    assert "deviceIterations" in public
    assert set(poptorch.optim.__all__) - {"Optimizer", "VariableAttributes"} <= words


@needs_host_runtime
@pytest.mark.parametrize("name", ["ctc_beam_search_decoder", "fps", "nearest"])
def test_what_the_poptorch_page_calls_an_error_is_one(name):
    with pytest.raises(poptorch.Error, match="not available"):
        getattr(poptorch, name)()
    with pytest.raises(poptorch.Error, match="not available"):
        poptorch.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("snnipu.md", snnipu),
        ("ops.md", ops),
        ("neurons.md", neurons),
        ("training.md", low_activity),
        ("training.md", sparse_benchmark),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_public_names_are_in_the_reference(page, module):
    text = text_of(ROOT / "docs" / "reference" / page)
    named = set(re.findall(r"[\w.]*\w", text.replace("snnipu.", " ")))
    last = {name.split(".")[-1] for name in named}
    assert [name for name in module.__all__ if name not in last | {"__version__"}] == []


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
REFERENCE = {
    name: page
    for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for name in re.findall(r"^   (snnipu\.[\w.]+)$", text_of(page), re.MULTILINE)
}


@needs_host_runtime
def test_reference_describes_every_parameter():
    assert len(REFERENCE) > 100
    assert not re.search(r"^\.\. auto(?:class|function|exception)::", "".join(map(text_of, DOCS)), re.MULTILINE)
    missing = []
    for name in REFERENCE:
        module, _, attribute = name.rpartition(".")
        thing = getattr(importlib.import_module(module), attribute)
        if not (isinstance(thing, type) and issubclass(thing, Exception)):
            parameters = inspect.signature(thing).parameters.values()
            words = [parameter.name for parameter in parameters if parameter.kind in NAMED]
            missing += [f"{name}: {word}" for word in words if not re.search(rf"\b{word}\b", thing.__doc__)]
    assert missing == []


@pytest.mark.parametrize("project", ["torch", "snntorch"])
def test_inventories_have_names_that_exist(project):
    lines = text_of(ROOT / "docs" / "inventories" / f"{project}.txt").splitlines()[3:]
    assert len(lines) > 30
    assert [line for line in lines if pydoc.locate(line.split()[0]) is None] == []


def cheat_sheet_rows():
    """Return the names, the second and the third cell of each row that says what stands behind names of snnTorch."""
    rows = [line.strip("|").split(" | ") for line in text_of(ROOT / "docs/reference/cheat-sheet.md").splitlines()]
    kinds = ("fused", "faster", "snnTorch's own")
    rows = [[cell.strip() for cell in row] for row in rows if row[1:] and row[1].strip().startswith(kinds)]
    return [(re.findall(r"`([\w.]+)`", row[0]), row[1], row[-1]) for row in rows]


def object_of(package, name):
    """Return what ``snn.NAME`` or ``MODULE.NAME`` is in ``package``; None: snnTorch is older, or lacks a package."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(package if module == "snn" else f"{package}.{module}"), attribute, None)
    except ModuleNotFoundError:
        return None


def test_cheat_sheet_says_what_stands_behind_a_name():
    rows = cheat_sheet_rows()
    assert len(rows) > 20
    for names, kind, _ in rows:
        for name in names:
            theirs, ours = (object_of(package, name) for package in ("snntorch", "snnipu"))
            if theirs is not None:
                assert (theirs is ours) == kind.startswith("snnTorch's own"), name
    named = {name for names, _, _ in rows for name in names}
    classes = [name for name in vars(snntorch) if isinstance(getattr(snntorch, name), type) and name[0].isupper()]
    assert {f"snn.{name}" for name in classes} - {"snn.LIF", "snn.SpikingNeuron"} <= named
    losses = [name for name in dir(snntorch.functional) if name.endswith("_loss")]
    assert {f"functional.{name}" for name in losses} <= named


def test_cheat_sheet_says_how_multistep_runs_a_neuron():
    arguments = {
        "snn.LeakyParallel": {"input_size": 20, "hidden_size": 10},
        "snn.AssociativeLeaky": {"in_dim": 20, "d_value": 4, "d_key": 5, "num_spiking_neurons": 20},
        "snn.LinearLeaky": {"beta": 0.9, "in_features": 20, "out_features": 10},
        "snn.StateLeaky": {"beta": 0.9, "channels": 20},
        "snn.GradedSpikes": {"size": 1, "constant_factor": 2.0},
        "snn.SLSTM": {"input_size": 20, "hidden_size": 20},
        "snn.SConv2dLSTM": {"in_channels": 1, "out_channels": 2, "kernel_size": 3},
        "snn.DeltaLeaky": {"beta": 0.9, "delta_threshold": 0.1},
        "snn.RLeaky": {"beta": 0.9, "linear_features": 20},
        "snn.Synaptic": {"alpha": 0.9, "beta": 0.8},
        "snn.Alpha": {"alpha": 0.9, "beta": 0.8},
        "snn.RSynaptic": {"alpha": 0.9, "beta": 0.8, "linear_features": 20},
    }
    for names, _, how in cheat_sheet_rows():
        for name in names:
            kind = object_of("snnipu", name)
            if name.startswith("snn.") and not how.startswith("not") and kind is not None:
                x = torch.rand(3, 2, 1, 6, 6) if "Conv" in name else torch.rand(3, 2, 20)
                paths = str(snnipu.MultiStep(kind(**arguments.get(name, {"beta": 0.9}))).paths(x))
                told = re.match("one operator|one call|step by step", how).group(0)
                runs = {"one operator": "all steps as one operator", "one call": "called once with all steps"}
                assert runs.get(told, told) in paths, (name, paths)


def test_every_data_set_is_in_the_reference():
    text = "".join(text_of(ROOT / "docs" / "reference" / page) for page in ("datasets.md", "snnipu.md"))
    assert [name for name in datasets.__all__ if f" snnipu.datasets.{name}\n" not in text] == []


def test_every_c_header_is_in_the_reference():
    page = text_of(ROOT / "docs" / "reference" / "c-interface.md")
    headers = sorted((ROOT / "csrc" / "host").glob("*.h"))
    assert len(headers) > 2
    assert [path.name for path in headers if f"{{literalinclude}} ../../csrc/host/{path.name}\n" not in page] == []


def test_surrogate_table_is_the_code():
    table = text_of(ROOT / "docs" / "explanation" / "gradient.md").split("## Surrogates")[1]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines() if re.match(r"\| `\w+\(", line)]
    kernels = [equation.__name__ for equation in equations.SURROGATES]
    assert {re.match(r"\| `(\w+)", row[0]).group(1) for row in rows} >= set(surrogate._FACTORIES)
    for row in rows:
        call = re.match(r"\| `([^`]+)`", row[0]).group(1)
        built = eval(call, {**vars(surrogate), "function": lambda u, grad, spikes: grad})
        if built.name != "custom_surrogate":  # the page shows the defaults
            assert built == getattr(surrogate, built.name)()
        expected = f"`{kernels[built.kernel.id]}`" if built.kernel is not None else "PyTorch"
        assert row[2] == expected, call


@pytest.mark.slow
def test_reference_is_built_without_a_warning(tmp_path):
    for module in ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "sphinx-mathjax-offline"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file()
    assert [name for name in REFERENCE if not (tmp_path / "reference" / "generated" / f"{name}.html").is_file()] == []
    # Browsers read nothing from a network.
    place = r"""["']?(?:https?:)?//"""
    loads = re.compile(rf"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)={place}|\burl\({place}|@import")
    built = [path for path in tmp_path.rglob("*") if path.suffix in (".html", ".css")]
    assert len(built) > 150
    assert [path.name for path in built if loads.search(text_of(path))] == []
