#!/usr/bin/env python3
"""Prints the number of instructions of a training step, of a point and of an operation, which Valgrind counts.

    python3 scripts/instructions.py [PROGRAM...]

Without a program, builds the benchmark `instructions`; with several, prints one column for each, for example of two commits.
Each case runs twice, and the difference is divided by the number of further repetitions, so that setup does not count. The
counts are repeatable, whatever else the machine does.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

import benches

# The repetitions of the first run, and those that the second run adds.
CASES = {
    "step-sgd": (30, 40),
    "step-adamw": (30, 40),
    "step-checkup": (30, 40),
    "convolutions": (30, 40),
    "convolutions-checkup": (30, 40),
    "step-logging": (30, 40),
    "step-tape": (200, 200),
    "point-0": (1_000, 10_000),
    "point-1": (1_000, 10_000),
    "point-10": (1_000, 10_000),
    "point-10-state": (1_000, 10_000),
    "operation-0": (1_000, 10_000),
    "operation-1": (1_000, 10_000),
}


def count(program, environment, case, repetitions):
    """Returns the number of instructions of a run."""
    with tempfile.NamedTemporaryFile() as out:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", program, case, str(repetitions)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        sys.exit(f"{' '.join(command)}:\n{done.stderr}")
    return int(found.group(1))


def main():
    programs = [(program, os.environ) for program in sys.argv[1:]] or [benches.build("instructions")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for case, (first, more) in CASES.items():
            runs = [[pool.submit(count, *program, case, n) for n in (first, first + more)] for program in programs]
            counts = [[run.result() for run in pair] for pair in runs]
            print(f"{case:16}", *(f"{round((second - one) / more):12,}" for one, second in counts), flush=True)


if __name__ == "__main__":
    main()
