#!/usr/bin/env python3
"""Makes the pictures of the README and the guide.

resume.svg: trains the example `gpt` once without interruption, and once killed with SIGKILL and started again, and plots the
perplexity of both. tensorboard.png: the curves of the demo in TensorBoard, in headless Chromium. Run `make demo` first. TENSORBOARD is
a Python interpreter that has TensorBoard. Defaults to the one of `make interop`.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import environments
from environments import ROOT

PICTURES = ROOT / "trainer" / "guide" / "pictures"
PICTURE = PICTURES / "tensorboard.png"
METRIC = "valid/sonnets/perplexity"
KILLED_AFTER = 110  # optimizer steps


def tensorboard():
    browser = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if not browser:
        sys.exit("picture: Chromium was not found in PATH: install it")
    if not list(ROOT.glob("runs/*/*tfevents*")):
        sys.exit("picture: there are no curves in runs/: run `make demo` first")
    python, port = os.environ.get("TENSORBOARD") or environments.python("interop"), 20000 + random.randrange(20000)
    command = [python, "-m", "tensorboard.main", "--logdir", "runs", "--port", str(port), "--load_fast", "false"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://localhost:{port}/data/plugin/scalars/tags")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-3d-apis", "--window-size=1400,860"]
        options += ["--virtual-time-budget=20000", f"--screenshot={PICTURE}", f"http://localhost:{port}/#scalars"]
        subprocess.run([browser, *options], check=True, stderr=subprocess.DEVNULL)
    finally:
        server.kill()
    print(f"picture: {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size // 1000} kB")


def wait_for(url):
    for _ in range(60):
        time.sleep(1)
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if b"train/loss" in answer.read():
                    return
        except OSError:
            pass
    sys.exit("picture: TensorBoard did not start within a minute")


def records(folder):
    """Returns the steps and the values of the metric in a run, and its last step."""
    try:
        lines = (folder / "runs/gpt/records.jsonl").read_text().splitlines()
    except OSError:
        return [], 0
    rows = [json.loads(line) for line in lines]
    return [(row["optimizer_steps"], row[METRIC]) for row in rows if METRIC in row], rows[-1]["optimizer_steps"] if rows else 0


def resume():
    subprocess.run(["cargo", "build", "-q", "-p", "examples", "--bin", "gpt"], cwd=ROOT, check=True)
    program = ROOT / "target/debug/gpt"
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as killed:
        whole, killed = pathlib.Path(whole), pathlib.Path(killed)
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([program], cwd=whole, check=True, **options)
        process = subprocess.Popen([program], cwd=killed, **options)
        while process.poll() is None and records(killed)[1] < KILLED_AFTER:
            time.sleep(0.1)
        time.sleep(0.5)
        process.kill()
        process.wait()
        before, _ = records(killed)
        subprocess.run([program], cwd=killed, check=True, **options)
        plot(records(whole)[0], before, records(killed)[0])


def plot(whole, before, after):
    """Draws the metric over the optimizer steps: the whole run as a broad line, the other one on top."""
    if after != whole:
        sys.exit(f"picture: the resumed run differs:\n{whole}\n{after}")
    width, height, left, top, right, bottom = 760, 300, 56, 44, 24, 44
    steps, high = whole[-1][0], max(value for _, value in whole)

    def x(step):
        return round(left + (width - left - right) * step / steps, 1)

    def y(value):
        return round(height - bottom - (height - top - bottom) * value / high, 1)

    def line(points, color, stroke):
        points = " ".join(f"{x(step)},{y(value)}" for step, value in points)
        return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{stroke}" stroke-linejoin="round"/>'

    def text(at_x, at_y, content, anchor="start", color="#57606a"):
        return f'<text x="{at_x}" y="{at_y}" text-anchor="{anchor}" fill="{color}">{content}</text>'

    resumed = [point for point in after if point[0] >= before[-1][0]]
    kill = x(before[-1][0])
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">']
    parts += [f'<rect width="{width}" height="{height}" fill="white"/>']
    for value in range(0, int(high) + 1, 10):
        parts += [f'<path d="M{left} {y(value)}H{width - right}" stroke="#d0d7de"/>', text(left - 8, y(value) + 4, value, "end")]
    parts += [text(x(step), height - bottom + 20, step, "middle") for step in range(0, steps + 1, 50)]
    parts += [text(width - right, height - 8, "optimizer step", "end"), text(left, 20, "perplexity of unseen sonnets")]
    parts += [line(whole, "#afb8c1", 9), line(before, "#0969da", 3), line(resumed, "#bc4c00", 3)]
    parts += [f'<path d="M{kill} {top}V{height - bottom}" stroke="#57606a" stroke-dasharray="4 4"/>']
    parts += [text(kill + 8, top + 12, "kill -9, and started again")]
    for row, (color, label) in enumerate([("#afb8c1", "never stopped"), ("#0969da", "killed"), ("#bc4c00", "resumed: each value equal, bit for bit")]):
        at = top + 50 + 20 * row
        parts += [f'<path d="M{width - 320} {at - 4}h24" stroke="{color}" stroke-width="{9 if row == 0 else 3}"/>', text(width - 288, at, label)]
    (PICTURES / "resume.svg").write_text("\n".join([*parts, "</svg>"]) + "\n")
    print("picture: trainer/guide/pictures/resume.svg")


if __name__ == "__main__":
    resume()
    tensorboard()
