"""Processes that are killed at any point of what they do."""

import multiprocessing
import os
import random
import signal
import time

import pytest

# Enough to meet each place of a write by far more rounds than the tests have: SNNIPU_KILLED_ROUNDS=1000.
ROUNDS = int(os.environ.get("SNNIPU_KILLED_ROUNDS", "12"))

needs_kill = pytest.mark.skipif(
    not hasattr(signal, "SIGKILL") or "fork" not in multiprocessing.get_all_start_methods(),
    reason="needs processes that fork",
)


def killed_together(work, *arguments):
    """Two processes do ``work``, over and over; both are killed, one a little before the other."""
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
