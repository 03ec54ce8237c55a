#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: `LinearLR(start_factor=0.1, begin=0, end=4)` of MMEngine, whose schedulers have the names
# of those of torch, warms up in 4 steps, as `total_iters=4` does: the full rate is that of step 4,
# counted from 0.
# Seen: the full rate is that of step 3: the range has 4 values, and so 3 differences. The rates are
# 0.1, 0.4, 0.7, 1 there and 0.1, 0.325, 0.55, 0.775, 1 in torch.
# Versions: mmengine 0.10.7, torch 2.13.0
# Matters: a recipe that is carried over with the same numbers has other rates in each step of its
# warm-up.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  mmengine==0.10.7 torch==2.13.0 numpy==2.4.6 setuptools==80.9.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import torch
from mmengine.optim import LinearLR

def rates(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule, seen = make(optimizer), []
    for _ in range(6):
        seen.append(round(optimizer.param_groups[0]["lr"], 6))
        optimizer.step()
        schedule.step()
    return seen

of_mmengine = rates(lambda optimizer: LinearLR(optimizer, start_factor=0.1, begin=0, end=4))
of_torch = rates(lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4))
print("mmengine", of_mmengine, "torch", of_torch)
assert of_mmengine == [0.1, 0.4, 0.7, 1.0, 1.0, 1.0] and of_torch == [0.1, 0.325, 0.55, 0.775, 1.0, 1.0]
EOF
