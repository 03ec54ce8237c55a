#!/usr/bin/env python3
"""Runs the comparisons with other programs, in a virtual environment in target/interop that is created once.

The arguments are passed on to cargo. See tests/interop/README.md.
"""

import os
import subprocess
import sys

import environments
from environments import ROOT


def main():
    arguments = sys.argv[1:]
    python = environments.python("interop")
    # The tests start the examples under torchrun.
    packages = ["-p", "tests", "-p", "examples"]
    features = ["--features", "examples/distributed"]
    built = subprocess.run(["cargo", "build", *packages, "--bins", *features, *arguments], cwd=ROOT).returncode
    if built != 0:
        return built
    command = ["cargo", "test", *packages, "--test", "it", *features, *arguments, "--", "interop::", "--ignored", "--nocapture"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "TRAINER_INTEROP": python}).returncode


if __name__ == "__main__":
    sys.exit(main())
