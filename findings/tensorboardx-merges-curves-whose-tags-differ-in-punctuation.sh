#!/usr/bin/env bash
# Subject: Logs of runs
# Guess: a tag such as `acc@1` or `loss (train)` is a text, and is kept.
# Seen: tensorboardX replaces what is not a letter, digit, `-`, `.`, `_` or `/` by `_` and removes
# a slash at the start. `a:b`, `a b` and `a_b` become one curve with the points of all three.
# Versions: tensorboardX 2.6.5, tensorboard 2.21.0
# Matters: `top@1` and `top:1` are one curve, and reading by the name that was logged finds
# nothing.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  tensorboard==2.21.0 tensorboardX==2.6.5 setuptools==80.9.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter

writer = SummaryWriter("logs")
for value, tag in enumerate(["loss (train)", "a:b", "a b", "a_b", "/lead"]):
    writer.add_scalar(tag, value, 1)
writer.close()
reader = EventAccumulator("logs")
reader.Reload()
curves = {tag: [event.value for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
print(curves)
assert curves == {"loss__train_": [0.0], "a_b": [1.0, 2.0, 3.0], "lead": [4.0]}
EOF
