#!/usr/bin/env python3
"""Downloads the CPU build of libtorch that tch requires into ./libtorch, from the PyPI wheels.

Does nothing if ./libtorch has this version, or if LIBTORCH or LIBTORCH_USE_PYTORCH selects another libtorch.
The folder is created by a rename, so it is never incomplete.
"""

import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

VERSION = "2.13.0"  # what tch 0.26.0 links against
REQUIREMENTS = f"""
torch=={VERSION} --hash=sha256:60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7
nvidia-cuda-cupti==13.0.85 --hash=sha256:4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
"""
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_25_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
LIBRARIES = ["libtorch_cpu.so", "libc10.so", "libgomp.so.1"]
# libtorch_cpu.so needs these two to load, with or without a GPU.
CUDA_LIBRARIES = ["libcupti.so.13", "libcudart.so.13"]

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "libtorch"
# Read by cargo through the `include` of .cargo/config.toml; LIBTORCH in the environment takes precedence.
CARGO_CONFIG = '[env]\nLIBTORCH = { value = "libtorch", relative = true }\n'


def fail(message):
    sys.exit(f"libtorch: {message}")


def check_given(folder):
    """Checks that LIBTORCH is a libtorch of the required version."""
    lib = pathlib.Path(folder) / "lib"
    if not any((lib / name).exists() for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.lib")):
        fail(f"LIBTORCH={folder} has no lib/libtorch_cpu: set it to an unpacked libtorch {VERSION}, or unset it")
    stated = pathlib.Path(folder) / "build-version"
    found = stated.read_text().strip().split("+")[0] if stated.exists() else VERSION
    if found != VERSION:
        fail(f"LIBTORCH={folder} is version {found}, but tch 0.26.0 requires {VERSION}: use that version, or unset it")
    print(f"libtorch: using LIBTORCH={folder}")


def check_python():
    """Checks that Python has the required version of torch, for LIBTORCH_USE_PYTORCH."""
    python = "python" if "VIRTUAL_ENV" in os.environ else "python3"  # the command that torch-sys uses
    probe = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    if probe.returncode != 0:
        fail(f"LIBTORCH_USE_PYTORCH is set, but {python} has no torch: pip install torch=={VERSION}, or unset it")
    found = probe.stdout.strip().split("+")[0]
    if found != VERSION:
        fail(
            f"LIBTORCH_USE_PYTORCH is set and {python} has torch {found}, but tch 0.26.0 requires {VERSION}: "
            f"pip install torch=={VERSION}, or unset it"
        )
    print(f"libtorch: using the torch {found} of {python}")


def download(folder):
    requirements = folder / "requirements.txt"
    requirements.write_text(REQUIREMENTS)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", "311", "--abi", "cp311", "--abi", "none"]
    command += [word for tag in PLATFORMS for word in ("--platform", tag)]
    command += ["--require-hashes", "-r", requirements, "--dest", folder]
    if subprocess.run(command).returncode != 0:
        fail("pip could not download the wheels (see the output above); nothing was kept: run `make libtorch` again")


def extract(wheels, folder):
    """Extracts the files of a CPU build from the wheels."""
    (folder / "lib").mkdir(parents=True)
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                base = name.rsplit("/", 1)[-1]
                if name.startswith("torch/include/") and base:
                    to = folder / name.removeprefix("torch/")
                elif name.startswith("torch/lib/") and base in LIBRARIES or base in CUDA_LIBRARIES:
                    to = folder / "lib" / base
                else:
                    continue
                to.parent.mkdir(parents=True, exist_ok=True)
                with wheel.open(name) as source, open(to, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
    # torch-sys always passes -ltorch; nothing needs a library of that name at run time.
    (folder / "lib" / "libtorch.so").write_text("INPUT(libtorch_cpu.so)\n")
    (folder / "cargo.toml").write_text(CARGO_CONFIG)
    missing = [name for name in LIBRARIES + CUDA_LIBRARIES if not (folder / "lib" / name).exists()]
    if missing or not (folder / "include" / "ATen" / "ATen.h").exists():
        fail(f"the wheels do not contain {', '.join(missing) or 'the headers'}; please report this")
    (folder / "build-version").write_text(VERSION + "\n")


def main():
    if "LIBTORCH_USE_PYTORCH" in os.environ:
        return check_python()
    if "LIBTORCH" in os.environ:
        return check_given(os.environ["LIBTORCH"])
    stated = TARGET / "build-version"
    if stated.exists() and stated.read_text().strip() == VERSION:
        return print(f"libtorch: LIBTORCH={TARGET}")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("libtorch: on this platform cargo downloads it: add `--features download-libtorch` (make adds it)")
        return None

    print(f"libtorch: downloading {VERSION} for the CPU (540 MB, once) into {TARGET}")
    for left in ROOT.glob(".libtorch-*"):  # left by a killed run; a run in progress is more recent
        if time.time() - left.stat().st_mtime > 3600:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".libtorch-", dir=ROOT) as scratch:
        scratch = pathlib.Path(scratch)
        download(scratch)
        print("libtorch: unpacking")
        extract(sorted(scratch.glob("*.whl")), scratch / "libtorch")
        if TARGET.exists():
            os.rename(TARGET, scratch / "old")
        os.rename(scratch / "libtorch", TARGET)
    print(f"libtorch: ready; in your other projects, export LIBTORCH={TARGET}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; nothing was kept: run `make libtorch` again")
    except OSError as error:
        fail(f"{error}; nothing was kept: fix this and run `make libtorch` again")
