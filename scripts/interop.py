#!/usr/bin/env python3
"""Runs the comparisons with other programs, in a virtual environment in target/interop that is created once.

The arguments are passed on to cargo. See tests/interop/README.md.
"""

import os
import pathlib
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "interop" / "requirements.txt"
FOLDER = ROOT / "target" / "interop"


def environment():
    """Returns the Python interpreter of an environment with the requirements, and installs them if they have changed."""
    binaries = FOLDER / ("Scripts" if os.name == "nt" else "bin")
    python, installed = binaries / "python", FOLDER / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    if not installed.exists() or installed.read_text() != wanted:
        print(f"interop: installing the packages of {REQUIREMENTS.name} into {FOLDER.relative_to(ROOT)}", flush=True)
        venv.create(FOLDER, with_pip=True)
        command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", REQUIREMENTS]
        if subprocess.run(command).returncode != 0:
            sys.exit("interop: pip could not install the requirements (see the output above); run `make interop` again")
        installed.write_text(wanted)
    return python


def main():
    arguments = sys.argv[1:]
    python = environment()
    # The tests start the examples under torchrun.
    packages = ["-p", "tests", "-p", "examples"]
    features = ["--features", "examples/distributed"]
    built = subprocess.run(["cargo", "build", *packages, "--bins", *features, *arguments], cwd=ROOT).returncode
    if built != 0:
        return built
    command = ["cargo", "test", *packages, "--test", "it", *features, *arguments, "--", "interop::", "--ignored", "--nocapture"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "TRAINER_INTEROP": str(python)}).returncode


if __name__ == "__main__":
    sys.exit(main())
