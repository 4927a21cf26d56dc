"""Print the table of docs/explanation/eventprop.md: errors of EventProp's gradient against the step, in minutes."""

import statistics
import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from neurons.test_eventprop import CONSTANTS, errors, problem
from support import continuous_spikes as continuous
from tqdm import tqdm

STEPS = (0.04, 0.02, 0.01, 0.005, 0.0025)
LEAST_MARGIN = 0.2
NETWORKS = 8
CASES = [
    *((kind, *case) for kind in (None, "delay") for case in (((10, 4), 0), ((5, 8, 3), 0), ((5, 8, 3), 1))),
    ("recurrent_weight", (10, 4), 0),
]


def margin(sizes, seed, reads_membranes, kind):
    """Return the smallest margin of the spiking neurons of a network."""
    events, layers, _ = problem(sizes, seed, kind)
    margins = []
    for layer in layers[: len(layers) - reads_membranes]:
        lists = {name: value.tolist() for name, value in layer.items()}
        spikes = continuous.layer(events, c=CONSTANTS, **lists)
        for n, row in enumerate(lists["weight"]):
            arriving = events
            if kind == "delay":
                arriving = continuous.arrivals(events, lists["delay"][n])
            elif kind == "recurrent_weight":
                arriving = sorted([*events, *((time, len(row) + source) for time, source in spikes)])
                row = row + lists["recurrent_weight"][n]
            margins.append(continuous.spikes_of(arriving, row, CONSTANTS)[2])
        events = spikes
    return min(margins)


def main():
    """Print a row for each kind of network, named by its parameters beside the weights."""
    for kind, sizes, reads_membranes in CASES:
        seeds = (seed for seed in range(600) if margin(sizes, seed, reads_membranes, kind) > LEAST_MARGIN)
        problems = [*islice(seeds, NETWORKS)]
        for reset in ("subtract",) if kind else ("subtract", "zero"):
            bar = tqdm(problems, f"{kind}, {sizes}, {reset}", disable=None)
            rows = [errors(sizes, seed, reads_membranes, STEPS, kind, reset_mechanism=reset) for seed in bar]
            read = "membranes" if reads_membranes else "first times"
            medians = (f"{statistics.median(column):.3%}" for column in zip(*rows))
            print(kind, sizes, read, reset, len(rows), *medians, flush=True)


if __name__ == "__main__":
    main()
