"""Write the generated C++ headers into a folder: ``cd snnipu && python -m _generator FOLDER``."""

import runpy
import sys
from pathlib import Path

from . import headers


def main(folder: str) -> None:
    equations = runpy.run_path(str(Path(__file__).resolve().parent.parent / "equations.py"))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in headers(equations).items():
        (Path(folder) / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
