#!/usr/bin/env python3
"""Kills and resumes a run with the logger for Weights & Biases, uploads it with the real client to a server of this
script, and compares what arrives with the files of the other loggers.

The reader of the run's file is a part of the client's core, which is not in Python: what it reads is what arrives.
"""

import collections
import csv
import gzip
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import wandb

FOLDER = pathlib.Path(sys.argv[1])
RUN = FOLDER / "killed"
OFFLINE = RUN / "wandb" / "offline-run"
PROGRAM, LIBRARIES = (FOLDER / "program.txt").read_text().splitlines()


class Server(http.server.ThreadingHTTPServer):
    """Keeps what the client sends: lines by their offsets, files, and the configuration of the run."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.lines, self.files, self.run, self.end = collections.defaultdict(dict), {}, {}, {}

    def handle_error(self, *_):
        pass  # the client closes its connections when it ends

    def answer(self, query, given):
        project = {"id": "p", "name": given.get("project"), "entity": {"id": "e", "name": given.get("entity")}}
        bucket = {"id": "b", "name": given.get("name"), "displayName": given.get("displayName"), "description": None}
        bucket |= {"config": "{}", "sweepName": None, "historyLineCount": 0, "project": project}
        if "upsertBucket" in query:
            self.run |= {key: value for key, value in given.items() if value is not None}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "serverInfo" in query and "features" in query:
            return {"serverInfo": {"features": []}}
        return {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def respond(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer = {}
        if self.path == "/graphql":
            request = json.loads(body)
            answer = {"data": self.server.answer(request["query"], request.get("variables") or {})}
        elif self.path.startswith("/upload/"):
            self.server.files[self.path.removeprefix("/upload/")] = body
        elif self.path.endswith("/file_stream"):
            sent = json.loads(body)
            for name, part in sent.get("files", {}).items():
                for nth, line in enumerate(part["content"]):
                    self.server.lines[name][part["offset"] + nth] = line
            self.server.end |= {key: sent[key] for key in ("complete", "exitcode") if key in sent}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = respond

    def log_message(self, *_):
        pass


def newest():
    """Returns the step of the newest checkpoint, which the run writes every 20 steps."""
    return max((int(path.name[-8:]) for path in RUN.glob("checkpoints/step-*")), default=0)


def train(kill):
    """Starts the run, and kills it once it has checkpoints and rows after the last one."""
    variables = {"LD_LIBRARY_PATH": LIBRARIES, "TRAINER_INTEROP_FOLDER": str(RUN)}
    command = [PROGRAM, "--exact", "interop::loggers::wandb_child", "--ignored", "--nocapture"]
    before = newest()
    child = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if kill:
        deadline = time.monotonic() + 120
        while newest() < before + 60:
            assert child.poll() is None and time.monotonic() < deadline, child.communicate()[0]
            time.sleep(0.01)
        time.sleep(0.05)
        child.kill()
    output, _ = child.communicate(timeout=300)
    assert kill or child.returncode == 0, output


def sync(server, *arguments):
    variables = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40, "WANDB_DIR": str(FOLDER), "HOME": str(FOLDER)}
    variables |= {"WANDB_ERROR_REPORTING": "false", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "wandb", "sync", *arguments, OFFLINE]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, cwd=FOLDER)
    output = done.stdout + done.stderr
    assert done.returncode == 0 and "Finished syncing" in output and "ERROR" not in output, output


def expected():
    """Returns the value of each name, position and span, as the CSV file has it, and the last value of each name."""
    points, last = collections.Counter(), {}
    with open(RUN / "values.csv") as file:
        for row in csv.DictReader(file):
            prefix = "epoch/" if (row["phase"], row["span"]) == ("train", "pass") else ""
            name, value = prefix + row["name"], repr(float(row["value"]))
            points[name, int(row["optimizer_steps"]), value] += 1
            last[name] = value
    return points, last


def check(history, summary, config, files):
    """Compares the rows of a history, the summary and the configuration with the files of other loggers."""
    assert [row["_step"] for row in history] == list(range(len(history))), "each row once, in order"
    points, media = collections.Counter(), collections.defaultdict(list)
    for row in history:
        for name, value in row.items():
            if "/" in name and isinstance(value, (int, float)):
                points[name, row["optimizer_steps"], repr(float(value))] += 1
            elif "/" in name:
                media[name].append((row["optimizer_steps"], value))
    wanted, last = expected()
    assert points == wanted, list((points - wanted).items())[:3] + list((wanted - points).items())[:3]
    assert len(points) > 5000 and set(points.values()) == {1}

    lines = [json.loads(line) for line in (RUN / "records.jsonl").read_text().splitlines()]
    lines = [(line["optimizer_steps"], line) for line in lines if line["span"] == "steps"]
    texts = [(step, line["train/text"]) for step, line in lines if "train/text" in line]
    assert media["train/text"] == texts and len(texts) == 5, media["train/text"]
    counts = [(step, sum(line["train/histogram"]["counts"])) for step, line in lines if "train/histogram" in line]
    found = [(step, sum(value["values"])) for step, value in media["train/histogram"]]
    assert found == counts and len(counts) == 5, (found, counts)
    for _, value in media["train/histogram"]:
        assert value["_type"] == "histogram" and len(value["bins"]) == len(value["values"]) + 1 <= 513
        assert value["bins"] == sorted(value["bins"])
    assert len(media["train/image"]) == 5
    for _, value in media["train/image"]:
        png = files(value["path"])
        assert png.startswith(b"\x89PNG") and len(png) == value["size"], value
        assert (value["_type"], value["width"], value["height"]) == ("image-file", 5, 4), value

    assert {name: repr(float(summary[name])) for name in last} == last
    settings = json.loads((RUN / "run.json").read_text())["hyperparameters"]
    assert config["width"] == 8 and config["activation"] == "relu" and config["lr"] == 0.1, config
    assert {name: config[name] for name in settings} == settings, (config, settings)
    return f"{len(points)} values, {len(history)} rows, {len(config)} hyperparameters, 5 histograms, images and texts"


server = Server()
threading.Thread(target=server.serve_forever, daemon=True).start()
train(kill=True)
# What was uploaded before a resume is replaced.
sync(server)
assert server.end == {"complete": True, "exitcode": 1}, server.end
early = len(server.lines["wandb-history.jsonl"])
train(kill=True)
train(kill=False)
assert list(OFFLINE.glob("run.wandb.before-resume-*")), "rows were moved aside"
sync(server, "--include-synced")
assert server.end == {"complete": True, "exitcode": 0}, server.end

lines = server.lines["wandb-history.jsonl"]
assert 0 < early < len(lines) and sorted(lines) == list(range(len(lines)))
history = [json.loads(lines[offset]) for offset in sorted(lines)]
summary = json.loads(server.lines["wandb-summary.json"][0])
config = {name: entry["value"] for name, entry in json.loads(server.run["config"]).items()}
metrics = config.pop("_wandb")["m"]
assert any(metric.get("2") == "*" for metric in metrics) and any(metric.get("1") == "optimizer_steps" for metric in metrics), metrics
assert (server.run["project"], server.run["entity"], server.run["displayName"]) == ("digits", "team", "killed"), server.run
assert re.fullmatch("[a-z0-9]{8}", server.run["name"]), server.run
arrived = check(history, summary, config, server.files.__getitem__)
print(f"Weights & Biases {wandb.__version__}: {arrived} arrive after two kills")
server.shutdown()
