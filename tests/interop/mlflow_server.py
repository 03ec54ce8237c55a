#!/usr/bin/env python3
"""Trains with the logger for MLflow against a real server, and compares its points with the CSV file."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import urllib.request

os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "2"

import pandas as pd
from mlflow.tracking import MlflowClient

FOLDER = pathlib.Path(sys.argv[1])
PORT = 20000 + random.randrange(20000)
URL = f"http://127.0.0.1:{PORT}"
PROGRAM, LIBRARIES = (FOLDER / "program.txt").read_text().splitlines()


def start_server():
    store = f"sqlite:///{FOLDER / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(PORT), "--backend-store-uri", store, "--workers", "1"]
    command += ["--default-artifact-root", str(FOLDER / "artifacts")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(120):
        try:
            with urllib.request.urlopen(f"{URL}/health", timeout=2):
                return server
        except OSError:
            time.sleep(1)
    sys.exit("the MLflow server did not start within two minutes")


def stop(server):
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def start(name, scenario):
    arguments = [PROGRAM, "--exact", "interop::loggers::mlflow_child", "--ignored", "--nocapture"]
    variables = {"TRAINER_INTEROP_SERVER": URL, "TRAINER_INTEROP_FOLDER": str(FOLDER / name), "TRAINER_INTEROP_SCENARIO": scenario}
    return subprocess.Popen(arguments, env={**os.environ, "LD_LIBRARY_PATH": LIBRARIES, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(child):
    output, _ = child.communicate(timeout=300)
    assert child.returncode == 0, output


def run_of(name):
    client = MlflowClient(URL)
    experiment = client.get_experiment_by_name("interop")
    runs = client.search_runs([experiment.experiment_id], filter_string=f"attributes.run_name = '{name}'")
    assert len(runs) == 1, f"{name}: {len(runs)} runs"
    return runs[0]


def check_points(name):
    """Compares every point of a run on the server with the rows of its CSV file."""
    frame = pd.read_csv(FOLDER / name / "values.csv")
    is_epoch = (frame.phase == "train") & (frame.span == "pass")
    frame["key"] = frame.name.where(~is_epoch, "epoch/" + frame.name)
    client, run = MlflowClient(URL), run_of(name)
    points = 0
    for key, rows in frame.groupby("key"):
        found = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, key)]
        wanted = list(zip(rows.optimizer_steps, rows.value))
        assert sorted(found) == sorted(wanted), f"{name}: {key} has {len(found)} points, expected {len(wanted)}"
        points += len(found)
    return points


server = start_server()
try:
    finish(start("finish", "finish"))
    run = run_of("finish")
    points = check_points("finish")
    assert points > 5000 and run.info.status == "FINISHED" and run.info.end_time, (points, run.info)
    assert run.data.params["width"] == "8" and run.data.params["activation"] == "relu", run.data.params
    assert run.data.params["optimizer"] == "Sgd" and run.data.params["lr"] == "0.1", run.data.params
    print(f"MLflow: {points} points, {len(run.data.params)} parameters, FINISHED")

    for scenario, status in [("fail", "FAILED"), ("cancel", "KILLED")]:
        finish(start(scenario, scenario))
        check_points(scenario)
        assert run_of(scenario).info.status == status, run_of(scenario).info
    print("MLflow: FAILED and KILLED")

    # A cancelled run continues, and so does one that was killed.
    finish(start("cancel", "finish"))
    assert run_of("cancel").info.status == "FINISHED"
    check_points("cancel")
    killed = start("killed", "slow")
    time.sleep(12)
    killed.kill()
    killed.wait()
    assert run_of("killed").info.status == "RUNNING"
    finish(start("killed", "finish"))
    assert run_of("killed").info.status == "FINISHED"
    print(f"MLflow: {check_points('killed')} points after a kill, RUNNING and then FINISHED")

    # The server is unreachable for 30 s in the middle of a run.
    child = start("away", "slow")
    time.sleep(6)
    stop(server)
    time.sleep(30)
    server = start_server()
    output, _ = child.communicate(timeout=300)
    assert child.returncode == 0 and "a request failed and will be retried" in output, output
    assert run_of("away").info.status == "FINISHED"
    print(f"MLflow: {check_points('away')} points although the server was unreachable for 30 s")
finally:
    stop(server)
