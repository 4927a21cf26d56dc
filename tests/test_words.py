"""Docstrings, comments and pages are clear at first reading: they have few of the signs of tests/support/words.py."""

import pytest
from support.commands import ROOT
from support.words import signs

BOUND = 1.0  # signs per 1,000 words
AREAS = {
    "package": ["snnipu"],
    "native code": ["csrc", "custom_ops"],
    "tests": ["tests"],
    "pages": ["docs", "README.md", "CONTRIBUTING.md"],
}


def files_of(names):
    for path in (ROOT / name for name in names):
        files = [path] if path.is_file() else sorted(path.rglob("*.*"))
        yield from (file for file in files if file.suffix in (".py", ".md", ".cpp", ".hpp", ".h"))


@pytest.mark.parametrize("area", AREAS)
def test_sentences_have_subjects_and_nouns(area):
    words, rows = 0, []
    for path in files_of(AREAS[area]):
        count, matches = signs(path)
        words += count
        rows += [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in matches]
    assert words > 1000
    assert len(rows) <= BOUND * words / 1000, "\n".join(rows)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""Whether it fits."""\n', 1),
        ("a.py", '"""Return True if the tensor fits."""\n# What is kept, as it was.\n\nx = 1\n', 3),
        ("a.hpp", "int x; // who looks at it\n\n// Yield the next row,\n// written out.\n\nint y; // Of a step\n", 3),
        ("a.md", "# What is kept\n\n```py\n# nobody\n```\n\nThose of a step are hidden. `anew` is no sign.\n", 1),
        ("a.md", "Whether the tensor fits\nis a question of slots.\n", 0),
    ],
)
def test_signs(name, text, expected, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert len(signs(tmp_path / name)[1]) == expected
