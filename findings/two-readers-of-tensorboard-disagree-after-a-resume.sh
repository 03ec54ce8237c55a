#!/usr/bin/env bash
# Subject: Logs of runs
# Guess: when steps go back after a resume, TensorBoard shows the new curve, and EventAccumulator,
# which is part of it, returns the same points.
# Seen: the page's own server drops the points at and after the step at which the run resumed.
# EventAccumulator, and TensorBoard with `--load_fast=false`, keep both: step 3 twice, in the
# order of the file. A session mark (`purge_step` of the writer) makes them agree.
# Versions: tensorboard 2.21.0, tensorboardX 2.6.5
# Matters: an evaluation script reads points of the abandoned branch that the page does not show.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  tensorboard==2.21.0 tensorboardX==2.6.5 setuptools==80.9.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import json, re, subprocess, sys, urllib.request
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter

first = SummaryWriter("logs/run")
for step in [1, 2, 3, 4, 5, 3, 4]:
    first.add_scalar("loss", step, step)
first.close()
reader = EventAccumulator("logs/run")
reader.Reload()
steps = {"EventAccumulator": [event.step for event in reader.Scalars("loss")]}
for fast in ["true", "false"]:
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "logs", "--port", "0", "--load_fast", fast]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if address := re.search(r"http://\S+", line):
                break
        url = address[0].rstrip("/") + "/data/plugin/scalars/scalars?run=run&tag=loss"
        for attempt in range(60):
            try:
                steps["fast " + fast] = [step for _, step, _ in json.load(urllib.request.urlopen(url))]
                break
            except urllib.error.HTTPError:  # not loaded yet
                subprocess.run(["sleep", "1"])
    finally:
        server.terminate()
        server.wait()
print(steps)
assert steps == {
    "EventAccumulator": [1, 2, 3, 4, 5, 3, 4],
    "fast true": [1, 2, 3, 4],
    "fast false": [1, 2, 3, 4, 5, 3, 4],
}
EOF
