"""Run the tutorials and store their outputs (``make notebooks``); make pages from the stored notebooks."""

import argparse
import base64
import io
import os
import re
import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat
from PIL import Image
from tqdm.auto import tqdm

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "tutorials"
PAGES = ROOT / "docs" / "tutorials"


def smaller(png: str) -> str:
    """Return a picture with 128 colours, which has a third of the bytes."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    written = io.BytesIO()
    picture.save(written, "png", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def execute(name: str) -> nbformat.NotebookNode:
    """Run a tutorial; return its notebook with outputs, without progress bars and times of execution."""
    notebook = jupytext.read(TUTORIALS / f"{name}.py")
    notebook = nbformat.from_dict({**notebook, "nbformat_minor": 5})
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        nbclient.NotebookClient(
            notebook, timeout=3600, kernel_name="python3", resources=where, record_timing=False
        ).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{name[:2]}-{number}"  # the same in every run
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = smaller(output.data["image/png"])
    notebook.metadata.pop("language_info", None)
    nbformat.validate(notebook)
    return notebook


def picture_of(notebook: nbformat.NotebookNode) -> bytes:
    """Return the first picture of the cell with the tag ``gallery``."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "gallery" in cell.metadata.get("tags", []) and "image/png" in output.get("data", {}):
                return base64.b64decode(output.data["image/png"])
    raise ValueError("no cell with the tag 'gallery' draws a picture")


def page_of(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the notebook as a page of ``docs``. A picture's text is the heading above it."""
    heading = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE) or [heading])[-1]
            cell.source = cell.source.replace("](../docs/", "](../")
        elif any("image/png" in output.get("data", {}) for output in cell.outputs):
            cell.metadata["mystnb"] = {"image": {"alt": re.sub(r"[*`$]", "", heading)}}
    return notebook


def write_pages() -> None:
    """Write the notebooks to the folder of Sphinx's pages."""
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        text = nbformat.writes(page_of(nbformat.read(path, as_version=4)))
        page = PAGES / path.name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="such as 04_compile_a_loop; all of them by default")
    names = parser.parse_args().names or sorted(path.stem for path in TUTORIALS.glob("*.py"))
    if "SNNIPU_DATA" in os.environ:
        os.environ["SNNIPU_DATA"] = os.path.abspath(os.environ["SNNIPU_DATA"])
    # tests/support makes an incompatible build of torchvision importable, as in the tests.
    path = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    for name in tqdm(names, unit="notebook", disable=None):
        notebook = execute(name)
        nbformat.write(notebook, TUTORIALS / f"{name}.ipynb")
        (PAGES / f"{name}.png").write_bytes(picture_of(notebook))


if __name__ == "__main__":
    main()
