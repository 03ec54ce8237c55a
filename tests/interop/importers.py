#!/usr/bin/env python3
"""Compares what trackio imports from TensorBoard's files with the logged values, without a network."""

import os
import pathlib
import struct
import sys
import tempfile

FOLDER = pathlib.Path(sys.argv[1])
RUN = FOLDER / "run"
SCRATCH = tempfile.TemporaryDirectory()
os.environ |= {"TRACKIO_DIR": SCRATCH.name, "HF_HUB_OFFLINE": "1"}

import trackio
from trackio.sqlite_storage import SQLiteStorage


def expected():
    """Returns the value of each tag and step as TensorBoard stores it; see `loggers.py`."""
    points = {}
    for line in (FOLDER / "expected.tsv").read_text().splitlines():
        name, step, bits = line.split("\t")
        value = struct.unpack(">d", bytes.fromhex(bits))[0]
        points[name, int(step)] = struct.unpack("f", struct.pack("f", value))[0]
    return points


def of_trackio():
    trackio.import_tf_events(RUN, project="interop")
    (name,) = SQLiteStorage.get_runs("interop")
    logs = SQLiteStorage.get_logs("interop", name)
    return {(tag, log["step"]): value for log in logs for tag, value in log.items() if tag not in ("step", "timestamp")}


points, found = expected(), of_trackio()
assert len(points) > 5000
# It may write a number with fewer digits than `f32` has.
assert found.keys() == points.keys(), sorted(found.keys() ^ points.keys())[:5]
for key, value in points.items():
    assert abs(found[key] - value) <= 1e-6 * abs(value), (key, found[key], value)
print(f"trackio: {len(found)} scalars")
