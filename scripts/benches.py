"""Benchmarks of the crate that a script starts itself, without cargo."""

import json
import os
import subprocess
import sys

from environments import ROOT


def build(name, arguments=()):
    """Builds a benchmark. Returns its program, and the environment with which it finds libtorch, as cargo would set it.

    Python must not get this environment: it loads a libtorch of its own.
    """
    command = ["cargo", "bench", "-q", "-p", "trainer", "--bench", name, "--no-run", "--message-format", "json", *arguments]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        sys.exit(f"{name}: cargo could not build the benchmark (see the output above)")
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    programs = [message["executable"] for message in messages if message.get("target", {}).get("name") == name and message.get("executable")]
    folders = {path.split("=")[-1]: None for message in messages for path in message.get("linked_paths", [])}
    known = filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    return programs[-1], {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([*folders, *known])}
