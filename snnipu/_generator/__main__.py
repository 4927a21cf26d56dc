"""Writes what the IPU's vertices and graphs include: ``cd snnipu && python -m _generator FOLDER``."""

import runpy
import sys
from pathlib import Path

from . import neuron, print_neurons

HEADER = "generated_neurons.hpp"


def main(folder: str) -> None:
    equations = runpy.run_path(str(Path(__file__).resolve().parent.parent / "equations.py"))
    found = [neuron(function, equations["OPTIONS"]) for function in equations["NEURONS"]]
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / HEADER).write_text(print_neurons(found))


if __name__ == "__main__":
    main(sys.argv[1])
