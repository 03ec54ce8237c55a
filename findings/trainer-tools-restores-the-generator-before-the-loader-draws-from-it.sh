#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: a run of trainer-tools that `CheckpointHook(resume_path=...)` resumes within an epoch has
# the dropout masks of the run that was not interrupted: the checkpoint has the state of torch's
# generator.
# Seen: the state is restored, then the loader starts and takes a number from the generator, as each
# start of a DataLoader does. The batches are those of the whole run, the masks are not.
# Versions: trainer-tools 0.5.0, torch 2.13.0
# Matters: a resumed run is almost the one that was not interrupted, which a test without random
# numbers in the model does not notice.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  trainer-tools==0.5.0 torch==2.13.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import logging, tempfile
import torch
from trainer_tools.hooks.base import BaseHook
from trainer_tools.hooks.checkpoint import CheckpointHook
from trainer_tools.trainer import Trainer
logging.disable(logging.CRITICAL)

class Note(BaseHook):
    def __init__(self):
        self.batches, self.masks = [], []
    def before_step(self, trainer):
        self.masks.append(torch.rand(()).item())

def run(keep):
    torch.manual_seed(5)
    net, note = torch.nn.Linear(1, 1), Note()
    def step(batch, trainer):
        note.batches.append(batch[0].item())
        return {"loss": trainer.model(batch[0]).mean()}
    data = torch.utils.data.TensorDataset(torch.arange(5.0)[:, None])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    Trainer(net, step, torch.utils.data.DataLoader(data), None, optim=optimizer, epochs=2, hooks=[keep, note], device="cpu").fit()
    return note

folder = tempfile.mkdtemp()
whole = run(CheckpointHook(folder, save_every_steps=3, keep_last=9, save_strategy="latest"))
resumed = run(CheckpointHook(tempfile.mkdtemp(), resume_path=f"{folder}/checkpoint_step_3.pt"))
print("batches", whole.batches[3:], resumed.batches)
print("numbers", whole.masks[3:5], resumed.masks[:2])
assert resumed.batches == whole.batches[3:]
assert resumed.masks[:2] != whole.masks[3:5]
EOF
