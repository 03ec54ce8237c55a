"""Runs tests with the C++ code of trainer-sys and trainer-c10d-sys compiled with the address sanitizer
and the undefined-behavior sanitizer, and counts their reports: `make sanitize`.

The exit status is 1 if there is a report or if a test fails. libtorch itself is not instrumented.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "target" / "sanitize"
REPORTS = TARGET / "reports"

# The unit tests beside the calls; `entry_points` calls every function of both packages.
UNIT = ["libtorch::"]

# The integration tests whose runs depend most on the C++ code.
INTEGRATION = [
    "activation_checkpointing::a_module",
    "activation_checkpointing::changes",
    "activation_checkpointing::calls_hooks_once",
    "activation_checkpointing::changes_no_bit",
    "activation_checkpointing::computing",
    "collectives::",
    "kernel_profiler::",
    "module_gradients::",
    "odd_tensors::",
    "ranks_gradients::",
    "sync_batch_norm::",
    "tape::",
    "version_counters::",
]


def library(name):
    """Returns the path of a library of the compiler."""
    compiler = os.environ.get("CXX", "c++")
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        sys.exit(f"make sanitize: {compiler} has no {name}: install the sanitizers of the compiler, or set CXX to another one")
    return path.resolve()


def environment():
    options = {
        # Rust's runtime and libtorch keep memory until the end of the program.
        "detect_leaks": 0,
        # A report ends the test that causes it.
        "abort_on_error": 0,
        "log_path": REPORTS / "address",
        "suppressions": ROOT / "scripts" / "sanitize-address.txt",
        # Tests of failing allocations and of large tensors.
        "allocator_may_return_null": 1,
    }
    undefined = {
        "print_stacktrace": 1,
        "log_path": REPORTS / "undefined",
        "suppressions": ROOT / "scripts" / "sanitize-undefined.txt",
    }
    joined = lambda options: ":".join(f"{name}={value}" for name, value in options.items())
    # The sanitizer must be the first library of a program, and no tool that cargo starts needs it.
    runner = f"env LD_PRELOAD={library('libasan.so')} ASAN_OPTIONS={joined(options)} UBSAN_OPTIONS={joined(undefined)}"
    host = re.search(r"host: (.*)", subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout)[1]
    return os.environ | {
        "CARGO_TARGET_DIR": str(TARGET),
        f"CARGO_TARGET_{host.upper().replace('-', '_')}_RUNNER": runner,
        "TRAINER_SANITIZE": str(library("libasan.so").parent),
    }


def main():
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    features = sys.argv[1:]
    commands = [
        ["cargo", "test", "-p", "trainer", "--lib", "--features", "distributed", *features, "--", "--nocapture", *UNIT],
        ["cargo", "test", "-p", "tests", "--test", "it", *features, "--", *INTEGRATION],
    ]
    passed, failed, entry_points, count = 0, 0, "0", 0
    for command in commands:
        print("+", " ".join(command), flush=True)
        run = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(run.stdout)
        count += len(re.findall(r"runtime error:", run.stdout))  # those that a library printed instead of keeping them
        passed += sum(map(int, re.findall(r"(\d+) passed; ", run.stdout)))
        failed += sum(map(int, re.findall(r"passed; (\d+) failed", run.stdout))) or int(run.returncode != 0)
        if called := re.search(r"(\d+) entry points were called", run.stdout):
            entry_points = called[1]
    reports = sorted(REPORTS.iterdir())
    for path in reports:
        text = path.read_text(errors="replace")
        count += len(re.findall(r"runtime error:|ERROR: AddressSanitizer", text)) or 1
        print(f"── {path.name}\n{text}")
    print(f"{entry_points} entry points were called; {passed} tests passed and {failed} failed; {count} reports")
    if entry_points == "0":
        print("make sanitize: the test that calls every entry point did not run", file=sys.stderr)
    sys.exit(bool(count or failed or entry_points == "0"))


if __name__ == "__main__":
    main()
