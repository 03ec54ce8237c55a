#!/usr/bin/env python3
"""Measures how the cost of what grows with a run depends on its size, and prints a table.

Each line has the cost at four sizes, each twice the one before, and the exponent over the upper half of the range: the cost
of twice the size is 2 to the power of the exponent. Each measurement is a process of its own, and the smallest of --rounds (3)
counts. What a tool is compared with is measured between them. `TokenFile` is measured in an optimized build, everything else in
a build without optimization, as a program runs while it is written. The files are written below target/, which should be on a
disk. Options: --lines (all) with a comma between names; further arguments are passed on to cargo.
"""

import argparse
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import benches
import environments

# The name, what is shown, and the largest size.
LINES = [
    ("names", "names of metrics in a pass", 10_000),
    ("names", "names of metrics in a pass", 100_000),
    ("hooks", "hooks in `build()`", 10_000),
    ("tensors", "tensors of a resume", 10_000),
    ("tensors", "tensors of a resume", 100_000),
    ("epochs", "epochs with 21 metrics of a resume", 10_000),
    ("csv", "values in `Csv`", 200_000),
    ("json-lines", "values in `JsonLines`", 200_000),
    ("tar", "rows of a tar shard", 20_000),
    ("parquet", "rows of a parquet shard", 20_000),
    ("tokens", "tokens of `TokenFile`", 64_000_000),
    ("save", "MB of a checkpoint in the foreground", 1_024),
    ("resume", "MB of a resume", 1_024),
]


def memmap(size, folder):
    """Reads the tokens of a file as nanoGPT does, into the same inputs and targets. Returns the processor time."""
    code = """
import sys, time
import numpy, torch
torch.set_num_threads(1)
tokens = numpy.memmap(sys.argv[1], dtype=numpy.uint16, mode="r")
rows, began = numpy.random.permutation((len(tokens) - 1) // 1024), time.process_time()
for batch in range(len(rows) // 8):
    own = rows[batch * 8:batch * 8 + 8] * 1024
    x = torch.stack([torch.from_numpy(tokens[i:i + 1024].astype(numpy.int64)) for i in own])
    y = torch.stack([torch.from_numpy(tokens[i + 1:i + 1025].astype(numpy.int64)) for i in own])
print(time.process_time() - began)
"""
    python = os.environ.get("NUMPY_PYTHON") or environments.python("interop")
    output = subprocess.run([python, "-c", code, folder / "tokens.bin"], check=True, stdout=subprocess.PIPE, text=True)
    return float(output.stdout)


def copied(size, folder):
    """Copies the files that a checkpoint consists of, and waits until they are on disk. Returns the wall-clock time."""
    checkpoint, copy = next(folder.glob("step-*")), folder / "copy"
    began = time.monotonic()
    subprocess.run(["cp", "-r", checkpoint, copy], check=True)
    subprocess.run(["sync", *copy.iterdir(), copy], check=True)
    return time.monotonic() - began


def measured(program, environment, line, size, rounds, versus):
    """Returns the smallest costs of some rounds, and the smallest of the tool that it is compared with."""
    costs, others = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=environments.ROOT / "target", prefix="growth-") as folder:
            for step in ("prepare", "measure"):
                command = [program, line, str(size), folder, step]
                output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            costs.append([float(number) for number in output.stdout.splitlines()[-1].split()])
            if versus:
                others.append(versus(size, pathlib.Path(folder)))
    return [min(column) for column in zip(*costs)], min(others, default=None)


def row(programs, name, shown, largest, rounds):
    program, environment = programs["tokens" if name == "tokens" else "other"]
    versus = {"tokens": memmap, "save": copied}.get(name)
    # What waits for the disk is measured by the clock.
    of = 1 if name in ("save", "resume") else 0
    sizes = [largest // 8, largest // 4, largest // 2, largest]
    results = [measured(program, environment, name, size, rounds, versus) for size in sizes]
    costs = [cost[of] for cost, _ in results]
    exponent = math.log2(costs[3] / costs[1]) / 2
    note = ""
    if name == "tokens":
        note = f"{results[3][1] / costs[3]:.2f} × as fast as a loop over numpy.memmap"
    elif name == "save":
        note = f"{costs[3] / results[3][1]:.2f} × the time of cp and sync"
    if name in ("save", "resume"):
        note += f"{'; ' if note else ''}memory grows by {results[3][0][2] / (largest << 20):.2f} × the parameters"
    cells = " | ".join(f"{cost:.3f}" for cost in costs)
    print(f"| {shown} | {largest:,} | {cells} | {exponent:.2f} | {note} |", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--lines", default="")
    options, arguments = options.parse_known_args()
    names = options.lines.split(",") if options.lines else sorted({name for name, *_ in LINES})
    features, programs = ["--features", "parquet,tar", *arguments], {}
    if "tokens" in names:
        programs["tokens"] = benches.build("growth", features)
    if names != ["tokens"]:
        programs["other"] = benches.build("growth", ["--profile", "dev", *features])
    print("| what grows | to | an eighth, s | a quarter, s | half, s | all, s | exponent | |\n|---|---|---|---|---|---|---|---|")
    for name, shown, largest in LINES:
        if name in names:
            row(programs, name, shown, largest, options.rounds)


if __name__ == "__main__":
    main()
