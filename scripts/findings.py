#!/usr/bin/env python3
"""Findings: scripts that show where a good guess about a library, a tool or a format is wrong.

    python3 scripts/findings.py table           # writes findings/README.md from the headers of the scripts
    python3 scripts/findings.py check           # fails if a header is incomplete or the table is not current
    python3 scripts/findings.py run [WORD]...   # checks, then runs the scripts whose names contain one of the words, or all

A script begins with a comment that has the labels below, each with a text that may continue on further lines. It installs
pinned public packages into a temporary folder, prints what it sees, and fails if that is no longer what its header says.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "findings"
TABLE = FOLDER / "README.md"
LABELS = ["Subject", "Guess", "Seen", "Versions", "Matters"]
SUBJECTS = [
    "Tables", "Tensors and samples", "Images and sound", "Tokenizers", "Metrics", "Optimizers and schedules", "Logs of runs",
    "Launchers", "Serialization in Rust", "Rust crates and cargo",
]  # fmt: skip
INTRODUCTION = """\
# Findings

Where a good guess about a library, a tool or a format is wrong. Each row is a script that runs the
real thing, without this project, on pinned public packages in a temporary folder. It fails if the
behavior has changed. `make findings` runs all of them, which takes about an hour and needs Python 3.11,
pip, cargo and a C compiler on Linux; `make findings FINDINGS="polars rand"` runs those with one of
these words in their name. CI does not run them.

To add one, write the guess down first, then run the real thing. If the guess was wrong, write a script
with the same header as the others and run `python3 scripts/findings.py table`, which writes this page.
"""


def header(script):
    """Returns the labels of a script and their texts."""
    fields, label = {}, None
    for line in script.read_text().splitlines()[1:]:
        if not line.startswith("#"):
            break
        if found := re.match(rf"# ({'|'.join(LABELS)}): (.*)", line):
            label = found[1]
            if label in fields:
                sys.exit(f"{script}: the header has the label {label} twice: keep one")
            fields[label] = found[2]
        elif label:
            fields[label] += " " + line[1:].strip()
    missing = [label for label in LABELS if not fields.get(label)]
    if missing:
        sys.exit(f"{script}: the header has no text for {', '.join(missing)}: add a line such as `# {missing[0]}: …`")
    if fields["Subject"] not in SUBJECTS:
        sys.exit(f"{script}: unknown subject {fields['Subject']!r}: use one of {', '.join(SUBJECTS)}")
    return fields


def scripts():
    return sorted(FOLDER.glob("*.sh"))


def table():
    """Returns the text of the page."""
    rows = {subject: [] for subject in SUBJECTS}
    for script in scripts():
        fields = header(script)
        cells = [fields["Guess"], f"{fields['Seen']} *Why it matters:* {fields['Matters']}", fields["Versions"]]
        cells = [(cell[0].upper() + cell[1:]).replace("|", "\\|") for cell in cells[:2]] + cells[2:]
        rows[fields["Subject"]].append(f"| [{script.stem.replace('-', ' ')}]({script.name}) | {' | '.join(cells)} |")
    text = INTRODUCTION
    for subject, lines in rows.items():
        if lines:
            text += f"\n## {subject}\n\n| finding | what one would guess | what is | versions |\n|---|---|---|---|\n" + "\n".join(lines) + "\n"
    return text


def check():
    for script in scripts():
        if not os.access(script, os.X_OK):
            sys.exit(f"{script} is not executable: run chmod +x on it")
    if not TABLE.exists() or TABLE.read_text() != table():
        sys.exit(f"{TABLE} is not what the headers of the scripts say: run python3 scripts/findings.py table")


def run(words):
    chosen = [script for script in scripts() if not words or any(word in script.name for word in words)]
    if not chosen:
        sys.exit(f"no finding has one of these words in its name: {' '.join(words)}")
    changed = []
    for script in chosen:
        start = time.monotonic()
        result = subprocess.run([script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(f"{'as before' if result.returncode == 0 else 'CHANGED'}  {time.monotonic() - start:4.0f} s  {script.stem}", flush=True)
        if result.returncode != 0:
            print(result.stdout, flush=True)
            changed.append(script.stem)
    print(f"{len(chosen)} findings, {len(changed)} changed{''.join(f'{chr(10)}  {name}' for name in changed)}")
    return bool(changed)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["table"]:
            TABLE.write_text(table())
        case ["check"]:
            check()
        case ["run", *words]:
            check()
            sys.exit(run(words))
        case _:
            sys.exit(__doc__)
