#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: `ShortEpochCallback(0.5)` trains half of the batches of an epoch, rounded up or down: 2 or
# 3 of 5, and 5 of 10.
# Seen: it compares the number of the current batch, counted from 0, after the batch was trained, so
# one batch more is trained than the fraction rounded up: 4 of 5, and 6 of 10. Both passes are
# cancelled, so the records of the run have no loss at all.
# Versions: fastai 2.8.12, torch 2.13.0
# Matters: a short run for a comparison trains on more than was asked for, most for small data.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  fastai==2.8.12 torch==2.13.0 torchvision==0.28.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import torch
from fastai.basics import Callback, DataLoaders, Learner
from fastai.callback.training import ShortEpochCallback
from fastai.callback.progress import ProgressCallback
from fastai.data.load import DataLoader

class Count(Callback):
    trained = 0
    def after_batch(self):
        self.trained += self.training

def trained(rows):
    data = [(torch.ones(1), torch.ones(1)) for _ in range(rows)]
    loaders = DataLoaders(*(DataLoader(data, bs=1, device="cpu") for _ in range(2)), device="cpu")
    count = Count()
    learn = Learner(loaders, torch.nn.Linear(1, 1), torch.nn.MSELoss(), cbs=[count, ShortEpochCallback(0.5)])
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 0.1)
    return count.trained, len(learn.recorder.values[0])

of_5, of_10 = trained(5), trained(10)
print("batches trained and values recorded: of 5", of_5, "of 10", of_10)
assert (of_5, of_10) == ((4, 0), (6, 0))
EOF
