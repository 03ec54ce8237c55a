#!/usr/bin/env python3
"""Compares the files of the loggers, as TensorBoard, PyTorch and pandas read them, with the logged values."""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import numpy as np
import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

FOLDER = pathlib.Path(sys.argv[1])
RUN = FOLDER / "run"


def expected():
    """Returns the value of each tag and step; the lines of a resumed run replace those that were lost."""
    points = {}
    for line in (FOLDER / "expected.tsv").read_text().splitlines():
        name, step, bits = line.split("\t")
        points[name, int(step)] = struct.unpack(">d", bytes.fromhex(bits))[0]
    return points


def accumulator(folder):
    size = {"scalars": 0, "histograms": 0, "images": 0, "tensors": 0}
    return EventAccumulator(str(folder), size_guidance=size).Reload()


def check_tensorboard(points):
    events = accumulator(RUN)
    found = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            assert (tag, event.step) not in found, f"{tag} has step {event.step} twice"
            found[tag, event.step] = np.float32(event.value)
    assert found.keys() == points.keys(), found.keys() ^ points.keys()
    for key, value in points.items():
        assert found[key].tobytes() == np.float32(value).tobytes(), (key, found[key], value)
    print(f"TensorBoard's reader: {len(found)} scalars equal to the last bit")

    try:
        from torch.utils.tensorboard.summary import make_histogram
        default_bins, of_torch = bins(), "PyTorch's SummaryWriter"
    except ImportError:
        make_histogram, default_bins, of_torch = None, bins(), "numpy.histogram on PyTorch's bins"
    histograms = events.Histograms("train/histogram")
    assert [event.step for event in histograms] == [50, 100, 150, 200, 250]
    for event in histograms:
        values = np.fromfile(FOLDER / f"histogram-{event.step}.f32", dtype="<f4")
        own = event.histogram_value
        if make_histogram:
            other = make_histogram(values, default_bins)
            assert list(own.bucket) == list(other.bucket), (own.bucket, other.bucket)
            assert list(own.bucket_limit) == list(other.bucket_limit)
            assert (own.min, own.max, own.num) == (other.min, other.max, other.num)
            assert abs(own.sum - other.sum) <= 1e-3 * abs(other.sum_squares) ** 0.5
        else:
            counts, _ = np.histogram(values, bins=default_bins)
            assert [count for count in own.bucket if count] == [count for count in counts if count]
    print(f"histograms: counts equal those of {of_torch}")

    images = events.Images("train/image")
    assert [(image.width, image.height) for image in images] == [(130, 104)] * 5, "5 x 4 pixels, each 26 times"
    assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in images)
    texts = events.Tensors("train/text")
    assert [text.tensor_proto.string_val[0].decode() for text in texts] == [f"step {step}, é" for step in range(50, 300, 50)]
    assert events.SummaryMetadata("train/text").plugin_data.plugin_name == "text"
    check_hyperparameters(events)


def bins():
    """The default bins of PyTorch's SummaryWriter (torch/utils/tensorboard/writer.py)."""
    value, positive = 1e-12, []
    while value < 1e20:
        positive.append(value)
        value *= 1.1
    return [-value for value in positive[::-1]] + [0] + positive


def check_hyperparameters(events):
    from tensorboard.plugins.hparams import plugin_data_pb2

    def content(tag):
        return plugin_data_pb2.HParamsPluginData.FromString(events.SummaryMetadata(tag).plugin_data.content)

    found = content("_hparams_/session_start_info").session_start_info.hparams
    assert found["width"].number_value == 8 and found["activation"].string_value == "relu", found
    assert found["▸ optimizer"].string_value == "Sgd" and found["▸ lr"].number_value == 0.1, found
    assert content("_hparams_/session_end_info").session_end_info.status == 1
    print(f"hyperparameters: {len(found)}")


def check_pandas(points):
    frame = pd.read_csv(RUN / "values.csv")
    is_epoch = (frame.phase == "train") & (frame.span == "pass")
    names = frame.name.where(~is_epoch, "epoch/" + frame.name)
    found = {(name, step): value for name, step, value in zip(names, frame.optimizer_steps, frame.value)}
    assert len(found) == len(frame) and found == points
    lines = pd.read_json(RUN / "records.jsonl", lines=True, precise_float=True)
    steps = lines[lines.span == "steps"].set_index("optimizer_steps")
    for (name, step), value in points.items():
        if name.startswith("train/value"):
            # pandas' own reader of JSON loses the last bit; Python's does not.
            assert abs(steps.loc[step, name] - value) <= 1e-14 * abs(value), (name, step)
    rows = [json.loads(line) for line in (RUN / "records.jsonl").read_text().splitlines()]
    exact = {(name, row["optimizer_steps"]): value for row in rows if row["span"] == "steps" for name, value in row.items()}
    assert all(exact[key] == value for key, value in points.items() if key[0].startswith("train/value"))
    print(f"pandas: {len(frame)} rows of CSV, {len(lines)} lines of JSON")


def check_server():
    """Kills and resumes a run under TensorBoard's HTTP server, which must show each point once at the end."""
    program, libraries = (FOLDER / "program.txt").read_text().splitlines()
    logs = FOLDER / "live"
    logs.mkdir()
    run = logs / "killed"
    port = 20000 + random.randrange(20000)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logs, "--port", str(port), "--reload_interval", "1", "--load_fast", "false"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        kills = 0
        while True:
            child = subprocess.Popen(
                [program, "--exact", "interop::loggers::tensorboard_child", "--ignored"],
                env={**os.environ, "LD_LIBRARY_PATH": libraries, "TRAINER_INTEROP_FOLDER": str(run)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                child.wait(timeout=0.5 if kills < 5 else None)
                assert child.returncode == 0
                break
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                kills += 1
            if run.exists() and list(run.glob("*tfevents*")):
                wait_for(lambda: get(port, "data/runs") == ["killed"], "the server lists the run")
        events = accumulator(run)
        for tag in ["train/loss", "valid/loss"]:
            scalars = [[event.step, event.value] for event in events.Scalars(tag)]
            query = urllib.parse.urlencode({"run": "killed", "tag": tag})
            shown = lambda: [point[1:] for point in get(port, f"data/plugin/scalars/scalars?{query}")]
            wait_for(lambda: shown() == scalars, f"the server shows the points of {tag} in the files")
        query = urllib.parse.urlencode({"request": json.dumps({"experimentName": ""})})
        infos = get(port, f"data/plugin/hparams/experiment?{query}")["hparamInfos"]
        assert [info["name"] for info in infos][:2] == ["activation", "width"], infos
        print(f"TensorBoard's server: the points are correct after {kills} kills")
    finally:
        server.kill()


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/{path}", timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return None


def wait_for(condition, what):
    for _ in range(240):
        if condition():
            return
        time.sleep(1)
    sys.exit(f"not reached within four minutes: {what}")


points = expected()
assert len(points) > 5000
check_tensorboard(points)
check_pandas(points)
check_server()
