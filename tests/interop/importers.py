#!/usr/bin/env python3
"""Compares what trackio and Weights & Biases import from TensorBoard's files with the logged values, without a network.

Since 0.30, wandb has no importer of existing files; 0.29 has. Its `wandb sync --sync-tensorboard` puts what the class
`TBWatcher` reads into a queue, which is read here, and uploads it.
"""

import json
import os
import pathlib
import queue
import struct
import sys
import tempfile

FOLDER = pathlib.Path(sys.argv[1])
RUN = FOLDER / "run"
SCRATCH = tempfile.TemporaryDirectory()
os.environ |= {"TRACKIO_DIR": SCRATCH.name, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "WANDB_DIR": SCRATCH.name}

import trackio
import wandb
from trackio.sqlite_storage import SQLiteStorage
from wandb.proto.wandb_internal_pb2 import RunRecord
from wandb.sdk.interface.interface_queue import InterfaceQueue
from wandb.sdk.internal.settings_static import SettingsStatic
from wandb.sdk.internal.tb_watcher import TBWatcher


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


def of_wandb():
    """Returns the numbers, and the names of everything else."""
    settings = wandb.Settings(root_dir=SCRATCH.name, run_id="interop", mode="offline", x_start_time=0.0)
    pathlib.Path(settings.files_dir).mkdir(parents=True)
    records = queue.Queue()
    watcher = TBWatcher(SettingsStatic(dict(settings)), RunRecord(run_id="interop"), InterfaceQueue(records), True)
    watcher.add(str(RUN), True, str(RUN))
    watcher.finish()
    points, others = {}, set()
    while not records.empty():
        record = records.get()
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in values.items():
            if isinstance(value, dict):
                others.add((name, value["_type"]))
            elif name not in ("global_step", "_timestamp"):
                points[name, int(values["global_step"])] = value
    return points, others


def check(program, found, points):
    # Both may write a number with fewer digits than `f32` has.
    assert found.keys() == points.keys(), (program, sorted(found.keys() ^ points.keys())[:5])
    for key, value in points.items():
        assert abs(found[key] - value) <= 1e-6 * abs(value), (program, key, found[key], value)
    print(f"{program}: {len(found)} scalars")


points = expected()
assert len(points) > 5000
check("trackio", of_trackio(), points)
numbers, others = of_wandb()
check("Weights & Biases", numbers, points)
# It leaves out `train/histogram`, since it has more than 512 bins.
assert others == {("train_image", "images/separated")}, others
print("Weights & Biases: images")
