#!/usr/bin/env python3
"""Downloads the libtorch that tch requires into ./libtorch, from the PyPI wheels.

    python3 scripts/libtorch.py         # for the CPU, unless ./libtorch has a build of this version
    python3 scripts/libtorch.py cuda    # for the CPU and NVIDIA GPUs
    python3 scripts/libtorch.py cpu     # back to the smaller one
    python3 scripts/libtorch.py verify  # compares the files of ./libtorch, if it exists, with a hash

If LIBTORCH or LIBTORCH_USE_PYTORCH selects another libtorch, it is checked, and nothing is downloaded.
The folder is created by a rename, so it is never incomplete.
"""

import hashlib
import json
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

# The version that tch 0.26.0 links against, the wheels with their hashes, and the libraries of a
# build. The command `trainer libtorch` reads the same file. torch for NVIDIA GPUs needs further
# wheels; the last two of them have headers that CUDA's and libtorch's own headers include, and what
# only Python uses is left out.
ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = json.loads((ROOT / "trainer/cli/src/libtorch/builds.json").read_text())
VERSION, CPU, CUDA = DATA["version"], DATA["cpu"], DATA["cuda"]
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 25, 18, 17, 12)] + ["manylinux2014_x86_64"]

# libtorch_cpu.so needs the last two to load, with or without a GPU.
LIBRARIES = CPU["libraries"]
# libtorch_cuda.so and what it is linked against; what it and cuDNN load while a program runs, so
# that no library names them.
LINKED_CUDA_LIBRARIES, LOADED_CUDA_LIBRARIES = CUDA["linked_libraries"], CUDA["loaded_libraries"]
CUDA_LIBRARIES = LINKED_CUDA_LIBRARIES + LOADED_CUDA_LIBRARIES
# The folder of CUDA's C++ library, whose headers CUDA's other headers include without it.
CCCL = "nvidia/cu13/include/cccl/"

# The hash of the files that the wheels for the CPU contain: see `digest`. After an update, `verify` prints the new one.
CPU_DIGEST = CPU["digest"]

BUILDS = {"cpu": "the CPU", "cuda": "the CPU and NVIDIA GPUs"}

TARGET = ROOT / "libtorch"
# Read by cargo through the `include` of .cargo/config.toml; LIBTORCH in the environment takes precedence.
CARGO_CONFIG = '[env]\nLIBTORCH = { value = "libtorch", relative = true }\n'
# torch-sys links with libtorch_cuda.so if it is there, but looks for it only when one of its variables changes. This is
# one of them, with its default: cargo then runs its build script again after a change of the build.
CUDA_CARGO_CONFIG = CARGO_CONFIG + 'LIBTORCH_CXX11_ABI = "1"\n'


def fail(message):
    sys.exit(f"libtorch: {message}")


def has_cuda(folder):
    """Returns whether a libtorch has the library for NVIDIA GPUs."""
    return any((pathlib.Path(folder) / "lib" / name).exists() for name in ("libtorch_cuda.so", "torch_cuda.lib"))


def digest(folder):
    """Returns a hash of the names and contents of all files but those that `add_generated` writes."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()):
        relative = path.relative_to(folder).as_posix()
        if relative not in generated("cpu"):
            content = b"a link" if path.is_symlink() else path.read_bytes()
            total.update(f"{hashlib.sha256(content).hexdigest()}  {relative}\n".encode())
    return total.hexdigest()


def generated(build):
    """Returns the content of each file that is not in a wheel."""
    return {
        # torch-sys always passes -ltorch; nothing needs a library of that name at run time.
        "lib/libtorch.so": "INPUT(libtorch_cpu.so)\n",
        "cargo.toml": CUDA_CARGO_CONFIG if build == "cuda" else CARGO_CONFIG,
        "build-version": VERSION + "\n",
    }


def add_generated(build, folder):
    for name, text in generated(build).items():
        path = folder / name
        path.unlink(missing_ok=True)  # it may be a link
        path.write_text(text)


def verify():
    """Compares ./libtorch, which may come from a cache, with the hash of what the wheels contain."""
    if not TARGET.exists():
        return print("libtorch: there is none yet; what is downloaded is compared with the hashes of the wheels")
    if TARGET.is_symlink() or has_cuda(TARGET):
        fail(f"only a build for the CPU in the folder {TARGET} can be verified: remove it, and run `make libtorch`")
    found = digest(TARGET)
    if found != CPU_DIGEST:
        fail(f"the files in {TARGET} have the hash {found}, expected {CPU_DIGEST}: remove it, and run `make libtorch`")
    # They decide how cargo builds, so those of the cache are not kept.
    add_generated("cpu", TARGET)
    return print(f"libtorch: all files in {TARGET} are those of the wheels")


def check_given(folder, wanted):
    """Checks that LIBTORCH is a libtorch of the required version, and of the build that is requested."""
    lib = pathlib.Path(folder) / "lib"
    if not any((lib / name).exists() for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.lib")):
        fail(f"LIBTORCH={folder} has no lib/libtorch_cpu: set it to an unpacked libtorch {VERSION}, or unset it")
    stated = pathlib.Path(folder) / "build-version"
    found = stated.read_text().strip().split("+")[0] if stated.exists() else VERSION
    if found != VERSION:
        fail(f"LIBTORCH={folder} is version {found}, but tch 0.26.0 requires {VERSION}: use that version, or unset it")
    found = "cuda" if has_cuda(folder) else "cpu"
    if wanted == "cuda" and found == "cpu":
        fail(f"LIBTORCH={folder} is a build for the CPU only: set it to one for CUDA, or unset it to download one")
    print(f"libtorch: using LIBTORCH={folder}, for {BUILDS[found]}")


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


def download(requirement, folder):
    """Downloads one wheel, and returns its path."""
    folder.mkdir()
    requirements = folder / "requirements.txt"
    requirements.write_text(requirement + "\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", "311", "--abi", "cp311", "--abi", "none"]
    command += [word for tag in PLATFORMS for word in ("--platform", tag)]
    command += ["--quiet", "--progress-bar", "off", "--require-hashes", "-r", requirements, "--dest", folder]
    # pip's own copy is then on the disk whose free space was checked.
    if subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}).returncode != 0:
        name = requirement.split()[0]
        fail(f"pip could not download {name} (see the output above); nothing was kept: run `make libtorch` again")
    return next(folder.glob("*.whl"))


def destination(name, libraries, with_cuda_headers):
    """Returns where a file of a wheel goes, relative to the folder of libtorch; `None` if it is not needed."""
    base = name.rsplit("/", 1)[-1]
    if not base:
        return None
    if name.startswith("torch/include/"):
        return name.removeprefix("torch/")
    if "/lib/" in name and base in libraries:
        return f"lib/{base}"
    # Beside libtorch's own headers, so that no other folder has to be given to the compiler.
    if with_cuda_headers and name.startswith(CCCL):
        return "include/" + name.removeprefix(CCCL)
    if with_cuda_headers and name.startswith("nvidia/") and "/include/" in name:
        return "include/" + name.split("/include/", 1)[1]
    return None


def unpack(path, folder, libraries, with_cuda_headers):
    """Unpacks the files of a wheel that are needed."""
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            relative = destination(name, libraries, with_cuda_headers)
            if relative is None:
                continue
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(name) as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def create(build, scratch):
    """Creates the folder of libtorch in `scratch`, and returns it."""
    folder = scratch / "libtorch"
    (folder / "lib").mkdir(parents=True)
    requirements = CPU["wheels"] + (CUDA["wheels"] if build == "cuda" else [])
    libraries = LIBRARIES + (CUDA_LIBRARIES if build == "cuda" else [])
    # One wheel at a time: all of them beside the unpacked files take 2 GB more.
    for requirement in requirements:
        print(f"libtorch: {requirement.split()[0]}", flush=True)
        wheel = download(requirement, scratch / "wheel")
        unpack(wheel, folder, libraries, build == "cuda")
        shutil.rmtree(scratch / "wheel")
    missing = [name for name in libraries if not (folder / "lib" / name).exists()]
    if missing or not (folder / "include" / "ATen" / "ATen.h").exists():
        fail(f"the wheels do not contain {', '.join(missing) or 'the headers'}; please report this")
    add_generated(build, folder)
    return folder


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    if wanted == "verify":
        return verify()
    if wanted not in (None, *BUILDS):
        fail(f"`{wanted}` is not a build: expected `cpu` or `cuda`, as set by `make libtorch CUDA=0` and `CUDA=1`")
    if "LIBTORCH_USE_PYTORCH" in os.environ:
        return check_python()
    if "LIBTORCH" in os.environ:
        return check_given(os.environ["LIBTORCH"], wanted)
    stated = TARGET / "build-version"
    if stated.exists() and stated.read_text().strip() == VERSION:
        found = "cuda" if has_cuda(TARGET) else "cpu"
        if wanted in (None, found):
            return print(f"libtorch: LIBTORCH={TARGET}, for {BUILDS[found]}")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        if wanted == "cuda" or platform.system() == "Linux":
            fail(f"builds exist only for Linux on x86-64: use PyTorch {VERSION} for Python, with LIBTORCH_USE_PYTORCH=1")
        print("libtorch: on this platform cargo downloads it: add `--features download-libtorch` (make adds it)")
        return None

    build = wanted or "cpu"
    for left in ROOT.glob(".libtorch-*"):  # left by a killed run; a run in progress is more recent
        if time.time() - left.stat().st_mtime > 3600:
            shutil.rmtree(left, ignore_errors=True)
    free = shutil.disk_usage(ROOT).free
    # While it is unpacked, with the largest wheel beside it.
    needed, size = DATA[build]["needed"] / 1e9, DATA[build]["downloaded"] / 1e9
    if free / 1e9 < needed:
        fail(f"unpacking needs {needed:.1f} GB in {ROOT}, but only {free / 1e9:.1f} GB are free: free some space")
    print(f"libtorch: downloading {VERSION} for {BUILDS[build]} ({size:.1f} GB, once) into {TARGET}")
    with tempfile.TemporaryDirectory(prefix=".libtorch-", dir=ROOT) as scratch:
        scratch = pathlib.Path(scratch)
        folder = create(build, scratch)
        if TARGET.is_symlink():
            TARGET.unlink()
        elif TARGET.exists():
            os.rename(TARGET, scratch / "old")
        os.rename(folder, TARGET)
    print(f"libtorch: ready; in your other projects, export LIBTORCH={TARGET}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; nothing was kept: run `make libtorch` again")
    except OSError as error:
        fail(f"{error}; nothing was kept: fix this and run `make libtorch` again")
