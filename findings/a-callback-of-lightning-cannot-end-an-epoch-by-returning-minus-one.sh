#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: if `on_train_batch_start` returns -1, the rest of the epoch is skipped. The documentation
# of the method says so, and both the module and a Callback have it.
# Seen: only the value that the module returns counts. The value of a Callback is ignored without a
# warning: 5 of 5 batches are trained, but 2 if the module has the same method.
# Versions: lightning 2.6.6, torch 2.13.0
# Matters: a rule that ends epochs has no effect if it is moved from the module to a callback.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  lightning==2.6.6 torch==2.13.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import logging, warnings
warnings.filterwarnings("ignore")
import lightning as L, torch
from lightning.pytorch.callbacks import Callback
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.trained = torch.nn.Linear(1, 1), 0
    def training_step(self, batch, _):
        self.trained += 1
        return self.net(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

class OfModule(Module):
    def on_train_batch_start(self, batch, nth):
        return -1 if nth == 2 else None

class OfCallback(Callback):
    def on_train_batch_start(self, trainer, module, batch, nth):
        return -1 if nth == 2 else None

def trained(module, *callbacks):
    quiet = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, callbacks=list(callbacks), **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(5, 1)))
    return module.trained

of_module, of_callback = trained(OfModule()), trained(Module(), OfCallback())
print("batches trained: with the method in the module", of_module, "in a callback", of_callback)
assert (of_module, of_callback) == (2, 5)
EOF
