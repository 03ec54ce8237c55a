#!/usr/bin/env python3
"""Takes the picture of TensorBoard in the guide: the curves of the demo, in headless Chromium.

Run `make demo` first. TENSORBOARD is a Python interpreter that has TensorBoard. Defaults to the one of `make interop`.
"""

import os
import random
import shutil
import subprocess
import sys
import time
import urllib.request

from interop import ROOT, environment

PICTURE = ROOT / "trainer" / "guide" / "pictures" / "tensorboard.png"


def main():
    browser = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if not browser:
        sys.exit("picture: Chromium was not found in PATH: install it")
    if not list(ROOT.glob("runs/*/*tfevents*")):
        sys.exit("picture: there are no curves in runs/: run `make demo` first")
    python, port = os.environ.get("TENSORBOARD") or environment(), 20000 + random.randrange(20000)
    command = [python, "-m", "tensorboard.main", "--logdir", "runs", "--port", str(port), "--load_fast", "false"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://localhost:{port}/data/plugin/scalars/tags")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-3d-apis", "--window-size=1400,860"]
        options += ["--virtual-time-budget=20000", f"--screenshot={PICTURE}", f"http://localhost:{port}/#scalars"]
        subprocess.run([browser, *options], check=True, stderr=subprocess.DEVNULL)
    finally:
        server.kill()
    print(f"picture: {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size // 1000} kB")


def wait_for(url):
    for _ in range(60):
        time.sleep(1)
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if b"train/loss" in answer.read():
                    return
        except OSError:
            pass
    sys.exit("picture: TensorBoard did not start within a minute")


if __name__ == "__main__":
    main()
