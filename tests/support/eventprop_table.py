"""Print the table of docs/explanation/eventprop.md: errors of EventProp's gradient against the step, in minutes."""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from neurons.test_eventprop import CONSTANTS, errors, problem
from support import continuous_spikes as continuous
from tqdm import tqdm

STEPS = (0.04, 0.02, 0.01, 0.005, 0.0025)
LEAST_MARGIN = 0.2
NETWORKS = 8


def margin(sizes, seed, reads_membranes):
    """Return the smallest margin of the spiking neurons of a network."""
    events, weights, _ = problem(sizes, seed)
    margins = []
    for weight in weights[: len(weights) - reads_membranes]:
        margins += [continuous.spikes_of(events, row, CONSTANTS)[2] for row in weight.tolist()]
        events = continuous.layer(events, weight.tolist(), CONSTANTS)
    return min(margins)


def main():
    for sizes, reads_membranes in (((10, 4), 0), ((5, 8, 3), 0), ((5, 8, 3), 1)):
        seeds = [seed for seed in range(600) if margin(sizes, seed, reads_membranes) > LEAST_MARGIN][:NETWORKS]
        for reset in ("subtract", "zero"):
            bar = tqdm(seeds, f"{sizes}, {reset}", disable=None)
            rows = [errors(sizes, seed, reads_membranes, STEPS, reset_mechanism=reset) for seed in bar]
            read = "membranes" if reads_membranes else "first times"
            print(sizes, read, reset, len(rows), *(f"{statistics.median(column):.3%}" for column in zip(*rows)))


if __name__ == "__main__":
    main()
