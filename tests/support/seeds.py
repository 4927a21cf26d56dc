"""The command line of tests whose random cases a seed determines."""

import argparse
import time


def main(description, kinds, failure, left_out=()):
    """Search for failing cases; ``failure`` returns the text of a failing case of a kind and a seed, or an empty text.

    Kinds that are left out run on request only.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    default = [kind for kind in kinds if kind not in left_out]
    parser.add_argument("--kinds", nargs="*", choices=list(kinds), default=default)
    parser.add_argument("--case", help="run one case, KIND:SEED")
    arguments = parser.parse_args()
    if arguments.case:
        kind, _, seed = arguments.case.rpartition(":")
        text = failure(kind, int(seed))
        print(text or "no failure")
        return int(bool(text))
    ends, seed, cases, failed = time.monotonic() + arguments.seconds, arguments.seed, 0, 0
    while time.monotonic() < ends:
        for kind in arguments.kinds:
            text = failure(kind, seed)
            cases += 1
            if text:
                failed += 1
                print(f"--case '{kind}:{seed}': {text}", flush=True)
        seed += 1
    print(f"{cases} cases, {failed} failed; next seed {seed}")
    return int(failed > 0)
