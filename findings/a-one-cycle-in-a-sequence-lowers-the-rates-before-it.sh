#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: in `SequentialLR(optimizer, [constant, one_cycle], [3])` the first three steps have the
# rate of the optimizer: the second schedule begins at its milestone.
# Seen: the rate of the first three steps is 0.004 and not 0.1. Creating OneCycleLR replaces the
# `initial_lr` of the optimizer by its own start, `max_lr / 25`, and the sequence begins from that.
# CosineAnnealingLR in its place changes nothing.
# Versions: torch 2.13.0
# Matters: a warm-up or a constant phase before a cycle trains with a 25th of the rate, which no
# curve but that of the rate shows.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  torch==2.13.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, OneCycleLR, SequentialLR

def rates(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    schedules = [ConstantLR(optimizer, factor=1.0, total_iters=3), make(optimizer)]
    schedule, seen = SequentialLR(optimizer, schedules, milestones=[3]), []
    for _ in range(3):
        seen.append(round(optimizer.param_groups[0]["lr"], 6))
        optimizer.step()
        schedule.step()
    return seen

cycle = rates(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=8, cycle_momentum=False))
cosine = rates(lambda optimizer: CosineAnnealingLR(optimizer, 8))
print("before a cycle", cycle, "before a cosine", cosine)
assert cycle == [0.004] * 3 and cosine == [0.1] * 3
EOF
