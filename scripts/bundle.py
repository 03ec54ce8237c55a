#!/usr/bin/env python3
"""Copies a program, and the libraries that it needs besides those of the system, into a folder for other machines.

    python3 scripts/bundle.py target/release/digits dist         # dist/digits, dist/lib
    python3 scripts/bundle.py --cpu target/release/digits dist   # without the libraries for GPUs

The libraries come from ./libtorch, or from the folder in LIBTORCH. The other machine needs a glibc that is as new as
this script says, and for GPUs NVIDIA's driver. The build script of the program must link it with the search path
`$ORIGIN/lib`, as examples/build.rs does; otherwise it must be started with LD_LIBRARY_PATH.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

import libtorch

# Copied too, because a minimal system may lack them, or have older ones.
OF_THE_COMPILER = ["libstdc++.so.6", "libgcc_s.so.1"]
# Part of glibc, which belongs to the kernel of the system and its own libraries, and NVIDIA's driver.
OF_THE_SYSTEM = re.compile(r"(ld-linux-|linux-vdso|lib(c|m|mvec|dl|rt|pthread|util|resolv|anl)\.so|lib(cuda|nvidia-ml)\.so)")


def fail(message):
    sys.exit(f"bundle: {message}")


def readelf(option, path):
    try:
        result = subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True)
    except FileNotFoundError:
        fail("this needs `readelf`: install binutils")
    if result.returncode != 0 or "Dynamic section" not in result.stdout and option == "-d":
        fail(f"{path} is not a dynamically linked program or library")
    return result.stdout


def needed(path):
    """Returns the names of the libraries that a file is linked against."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", path))


def search_path(path):
    """Returns the folders in which a program looks for libraries."""
    return [folder for found in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", readelf("-d", path)) for folder in found.split(":")]


def glibc(path):
    """Returns the newest version of glibc that a file needs, as numbers."""
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", readelf("-V", path))
    return max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def of_the_loader():
    """Returns the paths of the libraries that the system's loader knows, by name."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+(\S+) \(.*x86-64.*\) => (\S+)$", listed, re.MULTILINE)
    return {name: pathlib.Path(path) for name, path in reversed(found)}


def collect(program, folder, cpu):
    """Returns the paths of all libraries to copy, by name, with those that are loaded while the program runs."""
    system = of_the_loader()
    copied, todo = {}, [(name, program) for name in needed(program)]
    if not cpu and libtorch.has_cuda(folder.parent):
        loaded = [name for name in libtorch.CUDA_LIBRARIES if (folder / name).exists()]
        # A libtorch that comes from elsewhere may have other versions of what CUDA's libraries load.
        loaded += [path.name for path in folder.glob("lib*.so*") if re.match(r"lib(cudnn|nvrtc)", path.name)]
        todo += [(name, "libtorch") for name in loaded]
    while todo:
        name, by = todo.pop()
        if name in copied or OF_THE_SYSTEM.match(name):
            continue
        path = folder / name
        if not path.exists():
            path = system.get(name)
        if path is None:
            fail(f"{name}, which {by} needs, is neither in {folder} nor known to the system: set LIBTORCH to the libtorch of the program")
        if path.parent != folder and name not in OF_THE_COMPILER:
            print(f"bundle: {name} is a library of this system: {path}")
        copied[name] = path
        todo += [(other, name) for other in needed(path)]
    return copied


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="leave out the libraries for GPUs")
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path, help="created if it does not exist")
    arguments = parser.parse_args()
    program, target = arguments.program, arguments.folder
    if not program.is_file():
        fail(f"{program} does not exist: build it first, `cargo build --release`")
    folder = pathlib.Path(os.environ.get("LIBTORCH", libtorch.TARGET)).resolve() / "lib"
    if not folder.is_dir():
        fail(f"{folder} does not exist: run `make libtorch`, or set LIBTORCH")
    if (target / "lib").exists():
        fail(f"{target / 'lib'} exists: remove it, or choose another folder")

    libraries = collect(program, folder, arguments.cpu)
    (target / "lib").mkdir(parents=True)
    shutil.copy2(program, target / program.name)
    for name, path in libraries.items():
        shutil.copy2(path, target / "lib" / name)

    files = [target / program.name, *sorted((target / "lib").iterdir())]
    for path in sorted(files, key=lambda path: -path.stat().st_size):
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.relative_to(target)}")
    total = sum(path.stat().st_size for path in files)
    print(f"{total / 1e6:8.1f} MB  in {target}, which can be copied to any place on a machine with x86-64 Linux")
    print("it needs glibc {}.{} or newer there".format(*max(map(glibc, files))), end="")
    print(", and for GPUs NVIDIA's driver" if "libtorch_cuda.so" in libraries else "")
    if "$ORIGIN/lib" not in search_path(program):
        print(f"start it with LD_LIBRARY_PATH={target}/lib: it was linked without the search path $ORIGIN/lib (see trainer/guide/deployment.md)")


if __name__ == "__main__":
    main()
