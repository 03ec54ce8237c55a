"""Virtual environments with the programs that this crate is compared with: one for each make target that needs them."""

import pathlib
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent


def folder(target):
    return ROOT / "target" / target


def python(target):
    """Returns the Python interpreter of target/TARGET with the packages of tests/interop/TARGET.txt.

    Installs the packages if the file has changed since, or has never been installed.
    """
    requirements, installed = ROOT / "tests" / "interop" / f"{target}.txt", folder(target) / "installed.txt"
    interpreter, wanted = folder(target) / "bin" / "python", requirements.read_text()
    if not installed.exists() or installed.read_text() != wanted:
        print(f"{target}: installing the packages of {requirements.name} into {folder(target).relative_to(ROOT)}", flush=True)
        venv.create(folder(target), with_pip=True)
        command = [interpreter, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", requirements]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"{target}: pip could not install the packages (see the output above); run `make {target}` again")
        installed.write_text(wanted)
    return str(interpreter)
