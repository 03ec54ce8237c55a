"""The rows of the page about PyTorch Lightning, with Lightning."""

import csv
import logging
import pathlib
import shutil
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.callbacks.weight_averaging import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger

from common import *

warnings.filterwarnings("ignore")
for name in ["lightning", "lightning.pytorch", "lightning.fabric"]:
    logging.getLogger(name).setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self, optimizer=sgd, schedule=None, norm=None, by_epoch=False, **log):
        super().__init__()
        self.by_epoch = by_epoch
        self.net, self.optimizer, self.schedule, self.how = Net(norm), optimizer, schedule, log

    def training_step(self, batch, _):
        loss = mse(self.net, *batch)
        self.log("train_loss", loss, **self.how)
        return loss

    def validation_step(self, batch, _):
        loss = mse(self.net, *batch)
        if self.trainer.sanity_checking:
            seen["sanity"].append(loss.item())
        self.log("val_loss", loss)
        self.log("scripted", SCRIPT[self.current_epoch])

    def test_step(self, batch, _):
        self.log("test_loss", mse(self.net, *batch))

    def on_validation_end(self):
        if not self.trainer.sanity_checking:
            seen["valid"].append(self.trainer.callback_metrics["val_loss"].item())

    def configure_optimizers(self):
        optimizer = self.optimizer(self.net)
        if self.schedule is None:
            return optimizer
        if self.by_epoch:
            return [optimizer], [self.schedule(optimizer)]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.schedule(optimizer), "interval": "step"}}


def trainer(*callbacks, logger=False, **flags):
    quiet = dict(enable_progress_bar=False, enable_model_summary=False)
    flags = {"max_epochs": 2, "num_sanity_val_steps": 0, "enable_checkpointing": False, **quiet, **flags}
    return L.Trainer(accelerator="cpu", logger=logger, callbacks=list(callbacks), **flags)


def fit(*callbacks, module=None, valid=False, batch=4, **flags):
    module = module or Module()
    run = trainer(*callbacks, **flags)
    run.fit(module, loader(train_rows(), batch), loader(valid_rows()) if valid else None)
    seen["steps"] = [run.global_step]
    return run, module


@case("max_epochs=n")
def _():
    fit(max_epochs=3)


class StopAt(Callback):
    def __init__(self, epoch, batch=None):
        self.epoch, self.batch = epoch, batch

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer, module):
        if self.batch is None and trainer.current_epoch == self.epoch:
            trainer.should_stop = True


@case("min_epochs=n")
def _():
    fit(StopAt(0), max_epochs=5, min_epochs=3)


@case("max_steps=n")
def _():
    fit(max_epochs=-1, max_steps=7)


@case("limit_train_batches=x")
def _():
    fit(limit_train_batches=0.5)


@case("limit_val_batches=x")
def _():
    fit(valid=True, limit_val_batches=0.5)


@case("limit_test_batches=x")
def _():
    run = trainer(limit_test_batches=1)
    seen["test"] = [run.test(Module(), loader(train_rows()), verbose=False)[0]["test_loss"]]


@case("overfit_batches=x")
def _():
    fit(valid=True, overfit_batches=2)


@case("fast_dev_run=n")
def _():
    fit(valid=True, fast_dev_run=2)


@case("check_val_every_n_epoch=n")
def _():
    fit(valid=True, max_epochs=5, check_val_every_n_epoch=2)


@case("val_check_interval=0.25")
def _():
    fit(valid=True, val_check_interval=0.25)


@case("val_check_interval=0.25+")
def _():
    fit(valid=True, val_check_interval=1)


@case("val_check_interval=n")
def _():
    fit(valid=True, val_check_interval=3, check_val_every_n_epoch=None)


@case("a list of `val_dataloaders`, `dataloader_idx`")
def _():
    class Two(Module):
        def validation_step(self, batch, _, dataloader_idx=0):
            self.log("val_loss", mse(self.net, *batch))

        def on_validation_end(self):
            found = self.trainer.callback_metrics
            seen["valid"] += [found[f"val_loss/dataloader_idx_{nth}"].item() for nth in (0, 1)]

    run = trainer()
    run.fit(Two(), loader(train_rows()), [loader(valid_rows()), loader(rows(28, 6))])


@case("num_sanity_val_steps=2")
def _():
    fit(valid=True, num_sanity_val_steps=1)


@case("accumulate_grad_batches=n")
def _():
    fit(accumulate_grad_batches=2)


@case("GradientAccumulationScheduler({4: 2})")
def _():
    fit(GradientAccumulationScheduler({1: 5}), max_epochs=3)


@case("gradient_clip_val=x")
def _():
    fit(gradient_clip_val=0.05)


@case('gradient_clip_algorithm="value"')
def _():
    fit(gradient_clip_val=0.05, gradient_clip_algorithm="value")


@case("StochasticWeightAveraging(swa_epoch_start=n)")
def _():
    average = StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=2)
    _, module = fit(average, max_epochs=4)
    seen["average"] = flat(module.net)


@case("its last epoch, which updates batch norm")
def _():
    average = StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=2)
    _, module = fit(average, module=Module(norm=nn.BatchNorm1d), max_epochs=4)
    seen.clear()
    seen["statistics"] = module.net.norm.running_mean.tolist() + module.net.norm.running_var.tolist()


@case("WeightAveraging")
def _():
    _, module = fit(EMAWeightAveraging(decay=0.9))
    seen["average"] = flat(module.net)


@case("seed_everything(n)")
def _():
    L.seed_everything(5, verbose=False)
    seen["numbers"] = torch.randn(20).tolist() + torch.rand(3).tolist()


class Metrics(Callback):
    def __init__(self, *names):
        self.names = names

    def on_train_epoch_end(self, trainer, module):
        seen["logged"] += [trainer.callback_metrics[name].item() for name in self.names]


@case("log(name, value)")
def _():
    fit(Metrics("train_loss"), module=Module(on_step=False, on_epoch=True), batch=8)


@case("log(…, on_step=True, on_epoch=True)")
def _():
    fit(Metrics("train_loss_epoch"), module=Module(on_step=True, on_epoch=True), batch=8)


@case('log(…, reduce_fx="max")')
def _():
    fit(Metrics("train_loss"), module=Module(on_step=False, on_epoch=True, reduce_fx="max"))


def table(run):
    with open(pathlib.Path(run.logger.log_dir) / "metrics.csv") as file:
        return list(csv.DictReader(file))


@case("log_every_n_steps=50")
def _():
    run, _ = fit(logger=CSVLogger(folder()), log_every_n_steps=2)
    seen["logged"] = [row["train_loss"] for row in table(run)]


@case("TensorBoardLogger")
def _():
    run, _ = fit(logger=CSVLogger(folder()), log_every_n_steps=2)
    seen["axis"] = [row["step"] for row in table(run)]


@case("LearningRateMonitor")
def _():
    module = Module(schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    run, _ = fit(LearningRateMonitor(), module=module, logger=CSVLogger(folder()), log_every_n_steps=1)
    seen["logged"] = [row["lr-SGD"] for row in table(run) if row["lr-SGD"]]


@case('lr_scheduler_config["interval"]="epoch"')
def _():
    schedule = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    fit(module=Module(schedule=schedule, by_epoch=True), max_epochs=3)


@case("callback_metrics")
def _():
    run, _ = fit(valid=True)
    seen["logged"] = [run.callback_metrics["val_loss"].item()]


@case("should_stop = True")
def _():
    fit(StopAt(1, 1), max_epochs=4)


@case("return -1")
def _():
    class EndEpoch(Module):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    fit(module=EndEpoch())


@case('ModelCheckpoint(dirpath, save_top_k=2, monitor="val_loss")')
def _():
    saved = folder()
    keep = ModelCheckpoint(saved, save_top_k=2, monitor="scripted", filename="{epoch}")
    fit(keep, valid=True, max_epochs=9, enable_checkpointing=True)
    seen["epochs"] = sorted(int(file.stem.split("=")[1]) for file in pathlib.Path(saved).iterdir())


@case('fit(ckpt_path="last")')
def _():
    saved = folder()
    keep = ModelCheckpoint(saved, every_n_train_steps=3, filename="at", save_top_k=-1)
    fit(keep, max_epochs=-1, max_steps=3, enable_checkpointing=True)
    seen.clear()
    run = trainer()
    module = Module()
    run.fit(module, loader(train_rows()), ckpt_path=f"{saved}/at.ckpt")
    seen["steps"] = [run.global_step]


@case('test(ckpt_path="best")')
def _():
    keep = ModelCheckpoint(folder(), monitor="scripted")
    run, module = fit(keep, valid=True, max_epochs=3, enable_checkpointing=True)
    seen["test"] = [run.test(module, loader(train_rows()), ckpt_path="best", verbose=False)[0]["test_loss"]]


@case('EarlyStopping("val_loss", patience=3)')
def _():
    fit(EarlyStopping("scripted", patience=2), valid=True, max_epochs=12)


@case("BackboneFinetuning")
def _():
    class Split(Module):
        def __init__(self):
            super().__init__()
            self.backbone = self.net.fc1

        def configure_optimizers(self):
            head = [p for p in self.net.parameters() if p.requires_grad]
            return watch(torch.optim.SGD(head, lr=0.1), self.net)

    thaw = BackboneFinetuning(unfreeze_backbone_at_epoch=1, backbone_initial_lr=0.1, lambda_func=lambda epoch: 1.0)
    fit(thaw, module=Split(), max_epochs=3)
    del seen["rates"]


@case("optimizer_states")
def _():
    for name, optimizer in OPTIMIZERS.items():

        def module():
            schedule = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            return Module(lambda net: watch(optimizer(net.parameters()), net), schedule)

        def first():
            run, _ = fit(module=module(), enable_checkpointing=True, default_root_dir=folder())
            path = run.checkpoint_callback.best_model_path
            shutil.copy(path, written(f"{name}.ckpt"))
            return path

        continued(first, lambda path: trainer(max_epochs=4).fit(module(), loader(train_rows()), ckpt_path=path))


class Drawing(Module):
    def training_step(self, batch, _):
        seen["draws"].append(torch.rand(()).item())
        return super().training_step(batch, _)


@case("torch.rand")
def _():
    keep = ModelCheckpoint(folder(), every_n_train_steps=3, filename="at", save_top_k=-1)
    L.seed_everything(5, verbose=False)
    fit(keep, module=Drawing(), enable_checkpointing=True)
    whole = seen["draws"].copy()
    seen.clear()
    L.seed_everything(5, verbose=False)
    trainer().fit(Drawing(), loader(train_rows()), ckpt_path=f"{keep.dirpath}/at.ckpt")
    draws_continue(whole, seen["draws"])


if __name__ == "__main__":
    main()
