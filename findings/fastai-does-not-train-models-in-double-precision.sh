#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: a model and data in float64 train with fastai as with plain PyTorch: nothing but the model
# touches their types.
# Seen: the first batch ends with "expected dtype double for `end` but got dtype float": the
# smoothed loss of the recorder, which every Learner has, begins as a float32 and is mixed with the
# loss by torch.lerp. Bfloat16 models fail in the same way.
# Versions: fastai 2.8.12, torch 2.13.0
# Matters: a comparison in double precision, or a model in pure bfloat16, needs a patch of
# `AvgSmoothLoss.reset`.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  fastai==2.8.12 torch==2.13.0 torchvision==0.28.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import torch
from fastai.basics import DataLoaders, Learner
from fastai.callback.progress import ProgressCallback
from fastai.data.load import DataLoader

def trains(dtype):
    data = [(torch.ones(1, dtype=dtype), torch.ones(1, dtype=dtype)) for _ in range(4)]
    loaders = DataLoaders(*(DataLoader(data, bs=2, device="cpu") for _ in range(2)), device="cpu")
    learn = Learner(loaders, torch.nn.Linear(1, 1, dtype=dtype), torch.nn.MSELoss())
    try:
        with learn.no_bar(), learn.no_logging():
            learn.fit(1, 0.1)
        return True
    except RuntimeError as error:
        print(dtype, str(error).strip().splitlines()[-1].strip())
        return False

seen = [trains(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
print("float32, float64, bfloat16 train:", seen)
assert seen == [True, False, False]
EOF
