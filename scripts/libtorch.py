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
# What torch requires besides for NVIDIA GPUs, without what only Python uses. The last two have headers that CUDA's
# and libtorch's own headers include.
CUDA_REQUIREMENTS = """
nvidia-cublas==13.1.1.3 --hash=sha256:37936a16db8fe4ac1f065c2139360608a543a09275cb1a1af612e08cfa065436
nvidia-cuda-nvrtc==13.0.88 --hash=sha256:ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
nvidia-cudnn-cu13==9.20.0.48 --hash=sha256:0c45dd8eeb50b603f07995b1b300c62ffe6a1980482b82b3bcf94a4ca9d49304
nvidia-cufft==12.0.0.61 --hash=sha256:6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3
nvidia-cufile==1.15.1.6 --hash=sha256:08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44
nvidia-curand==10.4.0.35 --hash=sha256:1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc
nvidia-cusolver==12.0.4.66 --hash=sha256:0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112
nvidia-cusparse==12.6.3.3 --hash=sha256:2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b
nvidia-cusparselt-cu13==0.8.1 --hash=sha256:786ce87568c303fadb5afcc7102d454cd3040d75f6f8626f5db460d1871f4dd0
nvidia-nccl-cu13==2.29.7 --hash=sha256:edd81538446786ec3b73972543e53bb43bcaf0bfc8ef76cb679fcc390ffe136d
nvidia-nvjitlink==13.5.37 --hash=sha256:280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb
nvidia-nvshmem-cu13==3.4.5 --hash=sha256:290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
"""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 25, 18, 17, 12)] + ["manylinux2014_x86_64"]

# libtorch_cpu.so needs the last two to load, with or without a GPU.
LIBRARIES = ["libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcupti.so.13", "libcudart.so.13"]
# libtorch_cuda.so and what it is linked against.
LINKED_CUDA_LIBRARIES = [
    *("libtorch_cuda.so", "libc10_cuda.so", "libtorch_nvshmem.so", "libnvshmem_host.so.3", "libnccl.so.2"),
    *("libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libcufft.so.12", "libcufile.so.0", "libcurand.so.10"),
    *("libcusolver.so.12", "libcusparse.so.12", "libcusparseLt.so.0", "libnvJitLink.so.13"),
]
# What it and cuDNN load while a program runs, so that no library names them.
LOADED_CUDA_LIBRARIES = [
    *("libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"),
    *("libcudnn_adv.so.9", "libcudnn_cnn.so.9", "libcudnn_engines_precompiled.so.9"),
    *("libcudnn_engines_runtime_compiled.so.9", "libcudnn_graph.so.9", "libcudnn_heuristic.so.9", "libcudnn_ops.so.9"),
]
CUDA_LIBRARIES = LINKED_CUDA_LIBRARIES + LOADED_CUDA_LIBRARIES
# The folder of CUDA's C++ library, whose headers CUDA's other headers include without it.
CCCL = "nvidia/cu13/include/cccl/"

# The hash of the files that the wheels for the CPU contain: see `digest`. After an update, `verify` prints the new one.
CPU_DIGEST = "7e94d1067d30d616e5c7ee4bf5e6f7e811c115d53de4783556cf591a581e3faa"

BUILDS = {"cpu": "the CPU", "cuda": "the CPU and NVIDIA GPUs"}
DOWNLOADED = {"cpu": "540 MB", "cuda": "2.5 GB"}
# The bytes that a build takes while it is unpacked, with the largest wheel beside it.
NEEDED = {"cpu": 1_600_000_000, "cuda": 5_000_000_000}

ROOT = pathlib.Path(__file__).resolve().parent.parent
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
    requirements = (REQUIREMENTS + (CUDA_REQUIREMENTS if build == "cuda" else "")).split("\n")
    libraries = LIBRARIES + (CUDA_LIBRARIES if build == "cuda" else [])
    # One wheel at a time: all of them beside the unpacked files take 2 GB more.
    for requirement in filter(None, requirements):
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
    if free < NEEDED[build]:
        fail(f"unpacking needs {NEEDED[build] / 1e9:.1f} GB in {ROOT}, but only {free / 1e9:.1f} GB are free: free some space")
    print(f"libtorch: downloading {VERSION} for {BUILDS[build]} ({DOWNLOADED[build]}, once) into {TARGET}")
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
