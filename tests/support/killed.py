"""Processes that are killed at a random moment."""

import multiprocessing
import os
import random
import signal
import time

import pytest

# SNNIPU_KILLED_ROUNDS=1000 meets each moment of a write, in many more rounds than the tests have.
ROUNDS = int(os.environ.get("SNNIPU_KILLED_ROUNDS", "12"))

needs_kill = pytest.mark.skipif(
    not hasattr(signal, "SIGKILL") or "fork" not in multiprocessing.get_all_start_methods(),
    reason="needs processes that fork",
)


def killed_together(work, *arguments):
    """Run ``work`` repeatedly in two processes, and kill one shortly before the other."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(*arguments, number)) for number in range(2)]
    for process in processes:
        process.start()
    time.sleep(random.uniform(0.02, 0.3))
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
        time.sleep(random.choice([0, 0.002]))
    for process in processes:
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
