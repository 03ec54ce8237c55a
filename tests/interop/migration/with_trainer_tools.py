"""The rows of the page about trainer-tools, with trainer-tools."""

import json
import logging
import pathlib
import shutil

import torch
from trainer_tools.hooks.base import BaseHook
from trainer_tools.hooks.checkpoint import CheckpointHook
from trainer_tools.hooks.ema import EMAHook
from trainer_tools.hooks.metrics.base import Loss
from trainer_tools.hooks.metrics.lr_stats import LRStats
from trainer_tools.hooks.metrics.metrics_hook import MetricsHook
from trainer_tools.hooks.optimization import GradClipHook, GradientAccumulationHook, LRSchedulerHook
from trainer_tools.trainer import Trainer

from common import *

logging.disable(logging.CRITICAL)


def step(batch, trainer):
    return {"loss": mse(trainer.model, *batch)}


def run(*hooks, valid=False, batch=4, epochs=2, optimizer=sgd):
    net = Net()
    trainer = Trainer(
        net,
        step,
        loader(train_rows(), batch),
        loader(valid_rows()) if valid else None,
        optim=optimizer(net),
        epochs=epochs,
        hooks=list(hooks),
        device="cpu",
    )
    trainer.fit()
    seen["steps"] = [trainer.step_state.optimizer_step]
    return trainer


@case("epochs=n")
def _():
    run(epochs=3)


@case("is_grad_accum_boundary")
def _():
    class Boundaries(BaseHook):
        def after_backward(self, trainer):
            last = trainer.step_state.batch_idx + 1 >= len(trainer.dl)
            seen["boundaries"].append(trainer.step_state.is_grad_accum_boundary(last))

    run(GradientAccumulationHook(2), Boundaries())
    boundaries = seen["boundaries"]
    seen.clear()
    seen["boundaries"] = boundaries


@case("StepState")
def _():
    class Counts(BaseHook):
        def after_step(self, trainer):
            state = trainer.step_state
            if trainer.training:
                seen["batch"].append(state.batch_idx)
                seen["step"].append(state.optimizer_step)
                seen["epoch"].append(state.epoch)

    run(Counts())


@case("GradientAccumulationHook(steps=n)")
def _():
    run(GradientAccumulationHook(2))


@case("GradClipHook(max_norm=x)")
def _():
    run(GradientAccumulationHook(5), GradClipHook(0.05))


class Means(BaseHook):
    ord = 100

    def after_epoch(self, trainer):
        data = trainer.get_hook(MetricsHook).epoch_data
        seen["logged"] += [data[name] for name in ("train_loss", "valid_loss") if name in data]


@case("MetricsHook")
def _():
    run(MetricsHook([Loss()], tracker_type=None), Means(), batch=8)


@case("LRStats")
def _():
    class Rates(BaseHook):
        ord = 100

        def after_step(self, trainer):
            seen["logged"].append(LRStats()(trainer)["lr"])

    run(LRSchedulerHook(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)), Rates())


@case("LRSchedulerHook(…)")
def _():
    run(LRSchedulerHook(lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)))


@case("EMAHook")
def _():
    class Averages(BaseHook):
        ord = 100

        def after_fit(self, trainer):
            seen["average"] = flat(trainer.get_hook(EMAHook).ema_model)

    run(EMAHook(0.9), Averages())


@case("CheckpointHook(…)")
def _():
    saved = folder()
    keep = CheckpointHook(saved, save_every_steps=5, keep_last=2, save_strategy="latest")
    run(keep, epochs=4)
    names = [file.stem for file in pathlib.Path(saved).glob("checkpoint_step_*.pt")]
    seen["epochs"] = sorted(int(name.split("_")[-1]) // 5 - 1 for name in names)


@case("checkpoint_step_10.pt")
def _():
    for name, optimizer in OPTIMIZERS.items():
        watched = lambda net: watch(optimizer(net.parameters()), net)

        def first():
            saved = folder()
            run(CheckpointHook(saved, save_every_steps=10, save_strategy="latest"), optimizer=watched)
            path = f"{saved}/checkpoint_step_10.pt"
            shutil.copy(path, written(f"trainer-tools-{name}.pt"))
            return path

        def then(path):
            run(CheckpointHook(folder(), resume_path=path), optimizer=watched, epochs=4)

        continued(first, then)


@case("CheckpointHook(resume_path=…)")
def _():
    saved = folder()
    run(CheckpointHook(saved, save_every_steps=3, keep_last=9, save_strategy="latest"))
    seen.clear()
    run(CheckpointHook(folder(), resume_path=f"{saved}/checkpoint_step_3.pt"))


class Draw(BaseHook):
    def before_step(self, trainer):
        seen["draws"].append(torch.rand(()).item())


@case("torch.rand")
def _():
    saved = folder()
    run(CheckpointHook(saved, save_every_steps=3, keep_last=9, save_strategy="latest"), Draw())
    whole = seen["draws"].copy()
    seen.clear()
    run(CheckpointHook(folder(), resume_path=f"{saved}/checkpoint_step_3.pt"), Draw())
    draws_continue(whole, seen["draws"])


if __name__ == "__main__":
    main()
