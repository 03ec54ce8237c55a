#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: a checkpoint written after 3 of 5 iterations of an epoch resumes with the fourth, or the
# run says that it cannot.
# Seen: the epoch begins anew and trains all 5 batches, with the counter at 3: a run of 2 epochs
# ends at iteration 13 instead of 10, and a rate that depends on the iteration is 3 steps ahead.
# With torch 2.6 or later, the checkpoint is not even read, unless TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD
# is set, since it has objects of MMEngine.
# Versions: mmengine 0.10.7, torch 2.13.0
# Matters: runs that are interrupted train some rows once more than others, and their logs count
# steps that no uninterrupted run has.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  mmengine==0.10.7 torch==2.13.0 numpy==2.4.6 setuptools==80.9.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import logging, os, sys, tempfile
import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
logging.disable(logging.CRITICAL)

class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.net, self.trained = torch.nn.Linear(1, 1), 0
    def forward(self, x, mode="tensor"):
        self.trained += 1
        return {"loss": self.net(x).mean()}

class Leave(Hook):
    priority = "LOWEST"
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 2:
            raise KeyboardInterrupt

def runner(folder, name, *hooks, **settings):
    model = Model()
    keep = dict(type=CheckpointHook, interval=3, by_epoch=False, save_last=False)
    defaults = dict(timer=None, logger=None, sampler_seed=None, checkpoint=keep)
    return model, Runner(
        model=model, work_dir=folder, train_dataloader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(5, 1))),
        optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)), train_cfg=dict(by_epoch=True, max_epochs=2),
        default_hooks=defaults, custom_hooks=list(hooks), default_scope="mmengine", experiment_name=name, **settings,
    )

folder = tempfile.mkdtemp()
try:
    runner(folder, "first", Leave())[1].train()
except KeyboardInterrupt:
    pass
try:
    runner(folder, "refused", resume=True, load_from=f"{folder}/iter_3.pth")[1].train()
    was_read = True
except Exception as error:
    was_read = False
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
model, resumed = runner(folder, "resumed", resume=True, load_from=f"{folder}/iter_3.pth")
resumed.train()
print("read by default:", was_read, "batches after the resume:", model.trained, "last iteration:", resumed.iter)
assert (was_read, model.trained, resumed.iter) == (False, 10, 13)
EOF
