"""Coverage-guided fuzzing of the kernels and the file readers: ``make fuzz``.

``python tests/support/fuzz.py --seconds 600 --kernels out/fuzz/fuzz_kernels`` shares the time among all targets. These
are the families of tests/support/fuzz_kernels.cpp (libFuzzer) and the readers of fuzz_readers.py (atheris).
``--folder``
keeps the inputs that ended a target, and the corpora, with which the next run continues.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz_readers import READERS
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
# Longer inputs find no further faults. A case beyond these seconds or MiB counts as a hang.
MOST_BYTES, MOST_SECONDS, MOST_MEMORY = 600, 30, 4096


def targets(kernels):
    """Return {name: (command, variables of its environment)}."""
    commands = {}
    if kernels is not None:
        every = {**os.environ, "SNNIPU_FUZZ_FAMILY": "names"}
        with tempfile.NamedTemporaryFile() as seed:
            seed.write(bytes(8))
            seed.flush()
            families = subprocess.run(
                [kernels, seed.name], env=every, capture_output=True, text=True, check=True
            ).stdout
        commands = {name: ([kernels], {"SNNIPU_FUZZ_FAMILY": name}) for name in families.split()}
    for name in READERS:
        commands[name] = ([sys.executable, "-W", "ignore", str(HERE / "fuzz_readers.py"), name], {})
    return commands


def fuzz(name, command, variables, seconds, seed, folder):
    """Return the number of cases and branches, and the output of a failure."""
    corpus = folder / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", f"-timeout={MOST_SECONDS}", f"-seed={seed}"]
    options += [f"-rss_limit_mb={MOST_MEMORY}", f"-artifact_prefix={folder}/{name}-", str(corpus)]
    environment = {**os.environ, **variables, "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    output = done.stdout + done.stderr
    cases = re.findall(r"^Done (\d+) runs", output, re.MULTILINE) or re.findall(r"^#(\d+)\t", output, re.MULTILINE)
    branches = re.findall(r" cov: (\d+) ", output)
    return (
        int(cases[-1]) if cases else 0,
        int(branches[-1]) if branches else 0,
        output[-6000:] if done.returncode else None,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kernels", help="compiled fuzz_kernels; default: only the readers")
    parser.add_argument("--only", nargs="*", help="targets")
    parser.add_argument("--seed", type=int, default=0, help="0: random")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=HERE.parent.parent / "out" / "fuzz")
    arguments = parser.parse_args()
    every = targets(arguments.kernels)
    unknown = set(arguments.only or ()) - set(every)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: the targets are {', '.join(every)}")
    chosen = {name: every[name] for name in every if arguments.only is None or name in arguments.only}
    seconds = max(1, int(arguments.seconds * arguments.jobs / len(chosen)))
    failed = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {
            name: pool.submit(fuzz, name, command, variables, seconds, arguments.seed, arguments.folder)
            for name, (command, variables) in chosen.items()
        }
        for name, future in tqdm(futures.items(), unit="target", disable=None):
            cases, branches, output = future.result()
            tqdm.write(f"{name:16} {cases:10} cases, {branches:6} branches{'' if output is None else ': FAILED'}")
            if output is not None:
                failed.append(name)
                tqdm.write(output)
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs are in {arguments.folder}")
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
