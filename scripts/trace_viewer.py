#!/usr/bin/env python3
"""Checks that speedscope shows a trace of `TRAINER_PROFILE` as it was measured.

Trains the example `sine`, opens its trace in speedscope with a headless Chromium, and compares the times in
speedscope's table with those of the trace. Needs npm, and Chromium or Chrome (or its path in CHROMIUM).
"""

import base64
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SPEEDSCOPE = "1.25.0"
ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "trace-viewer"
TRACE = FOLDER / "sine.trace.json"
UNITS = {"ns": 1e-3, "µs": 1, "ms": 1e3, "s": 1e6}  # in microseconds


def chromium():
    names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    return found or sys.exit("trace_viewer: Chromium was not found in PATH: install it, or set CHROMIUM to its path")


def speedscope():
    folder = FOLDER / f"speedscope-{SPEEDSCOPE}"
    if not folder.exists():
        subprocess.run(["npm", "pack", "--silent", f"speedscope@{SPEEDSCOPE}"], cwd=FOLDER, check=True)
        shutil.unpack_archive(FOLDER / f"speedscope-{SPEEDSCOPE}.tgz", FOLDER)
        (FOLDER / "package").rename(folder)
    return folder / "dist" / "release" / "index.html"


def measured():
    """The total and the self time of each name, in microseconds."""
    spans = [span for span in json.loads(TRACE.read_text())["traceEvents"] if span["ph"] == "X"]
    times, open_spans = {}, []
    for span in spans:  # in the order of their begin
        while open_spans and open_spans[-1][1] <= span["ts"]:
            open_spans.pop()
        name = f'{span["name"]} {json.dumps(span["args"], separators=(",", ":"))}'
        total, own = times.get(name, (0, 0))
        times[name] = total + span["dur"], own + span["dur"]
        if open_spans:
            outer = open_spans[-1][0]
            times[outer] = times[outer][0], times[outer][1] - span["dur"]
        open_spans.append((name, span["ts"] + span["dur"]))
    return times


def shown(index):
    """The total and the self time of each name in speedscope's table, in microseconds, with their precision."""
    source = FOLDER / "trace.js"
    encoded = base64.b64encode(TRACE.read_bytes()).decode()
    source.write_text(f'speedscope.loadFileFromBase64("{TRACE.name}", "{encoded}")')
    page = subprocess.run(
        [
            chromium(), "--headless=new", "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader",
            "--enable-unsafe-swiftshader", "--allow-file-access-from-files", "--virtual-time-budget=30000",
            f"--user-data-dir={FOLDER / 'browser'}", "--window-size=1600,4000", "--dump-dom",
            f"file://{index}#localProfilePath={source}&view=sandwich",
        ],
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
    if f"{TRACE.name} - speedscope" not in text:
        sys.exit(f"trace_viewer: speedscope did not open the trace; its page is: {text[-2000:]}")
    time = r"([\d.]+)(ns|µs|ms|s) \([<>]?[\d.]+%\)"
    found = re.findall(rf'{time} {time} (.+? {{"phase":"\w+"}})', text)
    microseconds = lambda number, unit: (float(number) * UNITS[unit], 0.01 * UNITS[unit])
    return {name: (microseconds(*cells[:2]), microseconds(*cells[2:])) for *cells, name in found}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    TRACE.unlink(missing_ok=True)
    subprocess.run(
        ["cargo", "run", "-q", "-p", "examples", "--bin", "sine", *sys.argv[1:]],
        cwd=ROOT, env={**os.environ, "TRAINER_PROFILE": str(TRACE)}, check=True, stdout=subprocess.DEVNULL,
    )
    times, rows = measured(), shown(speedscope())
    if times.keys() != rows.keys():
        sys.exit(f"trace_viewer: speedscope shows {sorted(rows)}, expected {sorted(times)}")
    for name, expected in times.items():
        for value, (number, precision) in zip(expected, rows[name]):
            # A span of a nanosecond may move to its neighbor.
            if abs(value - number) > precision + 1e-3 * value:
                sys.exit(f"trace_viewer: speedscope shows {number} µs for `{name}`, expected {value} µs")
    print(f"speedscope {SPEEDSCOPE} shows the {len(rows)} rows of the trace with their times")


if __name__ == "__main__":
    main()
