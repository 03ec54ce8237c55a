#!/usr/bin/env python3
"""Runs `make bench`, appends its results to a file, and writes a page that plots each ratio over the commits.

    python3 scripts/bench_history.py                        # benches.jsonl and benches.html, which git ignores
    python3 scripts/bench_history.py --history FILE         # another file, and the page beside it
    python3 scripts/bench_history.py --results OUTPUT       # does not run: reads what TRAINER_BENCH=json make bench printed
    python3 scripts/bench_history.py --page-only            # only writes the page

Each line of the file is a run: {"commit", "date", "cpu", "results": [{"bench", "title", "case", "nanoseconds", "ratio"}]}.
"""

import argparse
import datetime
import html
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, LEFT, EDGE = 420, 110, 44, 14
COLORS = ["#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed"]
STYLE = """body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 940px; color: #222; background: #fff }
h2 { margin: 2em 0 0; border-bottom: 1px solid #ccc } h3 { margin: 1.2em 0 .3em } text { font-size: 11px; fill: #666 }
figure { display: inline-block; margin: 0 20px 12px 0 } figcaption span { color: #666 }"""
FIELDS = {"bench": str, "title": str, "case": str, "nanoseconds": float, "ratio": float}


def fail(message):
    sys.exit(f"bench_history: {message}")


def commit():
    git = lambda *arguments: subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return git("rev-parse", "HEAD").strip() + "-changed" * bool(git("status", "--porcelain", "--untracked-files=no"))


def cpu():
    text = path.read_text() if (path := pathlib.Path("/proc/cpuinfo")).exists() else ""
    found = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    return f"{found[1].strip() if found else platform.processor() or platform.machine()}, {os.cpu_count()} threads"


def checked(record, where):
    if not isinstance(record, dict) or any(not isinstance(record.get(name), kind) for name, kind in FIELDS.items()):
        fail(f"{where}: expected an object with {', '.join(FIELDS)}, not {json.dumps(record, ensure_ascii=False)}")
    return {name: record[name] for name in FIELDS}


def results_of(lines):
    """Returns the results in the output of the benchmarks. Prints the other lines."""
    results = []
    for number, line in enumerate(lines, 1):
        if line.startswith('{"bench"'):
            try:
                results.append(checked(json.loads(line, parse_int=float), f"line {number} of the output"))
            except json.JSONDecodeError as error:
                fail(f"line {number} of the output is not JSON: {error}")
        else:
            print(line, end="", flush=True)
    names = [f"{it['bench']} / {it['title']} / {it['case']}" for it in results]
    if twice := {name for name in names if names.count(name) > 1}:
        fail(f"several results have the same name: {', '.join(sorted(twice))}")
    return results or fail("the benchmarks printed no result: is TRAINER_BENCH=json set?")


def run():
    environment = {**os.environ, "TRAINER_BENCH": "json"}
    with subprocess.Popen(["make", "-s", "bench"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        results = results_of(process.stdout)
    return results if process.returncode == 0 else fail("`make bench` failed: nothing was recorded")


def read(path):
    runs = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            entry = json.loads(line, parse_int=float)
            runs.append({**{name: str(entry[name]) for name in ("commit", "date", "cpu")}, "results": [
                checked(result, f"{path}:{number}") for result in entry["results"]]})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            fail(f"{path}:{number} is not a run ({error!r}): remove the line")
    return runs


def plot(points, count, cpus):
    """Draws (number of the run, CPU, ratio, label): a line for each CPU, because ratios depend on it."""
    ratios = [1.0] + [ratio for _, _, ratio, _ in points]
    low, high = min(ratios), max(ratios)  # they differ: there is a ratio other than 1
    at = lambda nth: LEFT + (WIDTH - LEFT - EDGE) * (nth / (count - 1) if count > 1 else 0.5)
    up = lambda ratio: EDGE + (HEIGHT - 2 * EDGE) * (high - ratio) / (high - low)
    parts = [f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">'
             f'<path d="M{LEFT} {up(1):.1f}H{WIDTH - EDGE}" stroke="#bbb" stroke-dasharray="3"/>']
    parts += [f'<text x="{LEFT - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>' for value in (low, high)]
    for nth, name in enumerate(cpus):
        own, color = [point for point in points if point[1] == name], COLORS[nth % len(COLORS)]
        line = " ".join(f"{at(number):.1f},{up(ratio):.1f}" for number, _, ratio, _ in own)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}"/>')
        parts += [f'<circle cx="{at(number):.1f}" cy="{up(ratio):.1f}" r="3" fill="{color}">'
                  f'<title>{ratio:.3f}: {html.escape(label)}</title></circle>' for number, _, ratio, label in own]
    return "".join(parts) + "</svg>"


def page(runs):
    """Returns the page. The ratios of baselines, which are always 1, are left out."""
    cpus, series = list(dict.fromkeys(run["cpu"] for run in runs)), {}
    for number, entry in enumerate(runs):
        label = f"{entry['commit'][:9] + entry['commit'][40:]}, {entry['date'][:16]}, {entry['cpu']}"
        for it in entry["results"]:
            series.setdefault((it["bench"], it["title"], it["case"]), []).append((number, entry["cpu"], it["ratio"], label))
    legend = ", ".join(f'<b style="color: {COLORS[nth % len(COLORS)]}">{html.escape(name)}</b>' for nth, name in enumerate(cpus))
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>Benchmarks of trainer</title><style>{STYLE}</style>"
             "<h1>Benchmarks of trainer</h1><p>Times relative to the baseline of each benchmark, which is 1: lower is better."
             f" {len(runs)} runs on {legend}.</p>"]
    shown = (None, None)
    for (bench, title, case), points in sorted(series.items(), key=lambda item: item[0][:2]):
        if all(ratio == 1.0 for _, _, ratio, _ in points):
            continue
        parts += [f"<h2>{html.escape(bench)}</h2>"] * (shown[0] != bench) + [f"<h3>{html.escape(title)}</h3>"] * (shown != (bench, title))
        shown = (bench, title)
        _, newest, ratio, _ = points[-1]
        before = [ratio for _, cpu, ratio, _ in points[-11:-1] if cpu == newest]
        change = f", {ratio / statistics.median(before) - 1:+.1%} against the median of those before" if before else ""
        caption = f"{html.escape(case)}: <b>{ratio:.3f}</b><span>{change}</span>"
        parts.append(f"<figure><figcaption>{caption}</figcaption>{plot(points, len(runs), cpus)}</figure>")
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=pathlib.Path, default=ROOT / "benches.jsonl")
    parser.add_argument("--results", type=argparse.FileType())
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    runs = read(options.history)  # before the benchmarks, which take long
    if not options.page_only:
        start = {"commit": commit(), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "cpu": cpu()}
        runs.append({**start, "results": results_of(options.results) if options.results else run()})
        with options.history.open("a") as file:
            file.write(json.dumps(runs[-1], ensure_ascii=False) + "\n")
    _ = runs or fail(f"{options.history} has no runs")
    options.history.with_suffix(".html").write_text(page(runs))
    print(f"{len(runs)} runs: {options.history}, {options.history.with_suffix('.html')}")


main()
