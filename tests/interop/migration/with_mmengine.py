"""The rows of the page about MMEngine, with MMEngine."""

import logging
import os
import pathlib
import shutil

# MMEngine 0.10.7 does not resume its own checkpoints under the defaults of torch 2.6 and later.
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"

import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, EMAHook, Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from common import *

logging.disable(logging.CRITICAL)
EPOCHS = dict(by_epoch=True, max_epochs=2)


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, y, mode="tensor"):
        if mode == "loss":
            return {"loss": mse(self.net, x, y)}
        return [{"loss": F.mse_loss(self.net(x), y).item()}]


class Metric(BaseMetric):
    def __init__(self):
        super().__init__()
        self.epoch = -1

    def process(self, batch, outputs):
        self.results += [output["loss"] for output in outputs]

    def compute_metrics(self, losses):
        self.epoch += 1
        seen["valid"].append(sum(losses) / len(losses))
        return {"scripted": SCRIPT[self.epoch]}


def runner(*hooks, valid=False, optimizer=None, wrapper=None, train=EPOCHS, saved=None, val_interval=1, **settings):
    model = Model()
    optimizer = watch((optimizer or sgd_of)(model.net), model.net)
    defaults = dict(timer=None, logger=None, checkpoint=None, sampler_seed=None)
    validated = dict(val_dataloader=loader(valid_rows()), val_cfg={}, val_evaluator=Evaluator([Metric()])) if valid else {}
    return Runner(
        model=model,
        work_dir=saved or folder(),
        train_dataloader=loader(train_rows()),
        optim_wrapper=OptimWrapper(optimizer, **(wrapper or {})),
        train_cfg={**train, "val_interval": val_interval},
        default_hooks={**defaults, **settings.pop("default_hooks", {})},
        custom_hooks=list(hooks),
        default_scope="mmengine",
        experiment_name=f"migration-{pathlib.Path(folder()).name}",
        log_level="CRITICAL",
        **validated,
        **settings,
    )


def sgd_of(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)


def run(*hooks, **settings):
    run = runner(*hooks, **settings)
    run.train()
    seen["steps"] = [len(seen["rates"])]
    return run


def epochs(count, **others):
    return dict(by_epoch=True, max_epochs=count, **others)


@case("max_epochs=n")
def _():
    run(train=epochs(3))


@case("IterBasedTrainLoop(max_iters=n)")
def _():
    run(train=dict(by_epoch=False, max_iters=7))


@case("val_interval=n")
def _():
    run(valid=True, train=epochs(5), val_interval=2)


@case("OptimWrapper(accumulative_counts=n)")
def _():
    run(wrapper=dict(accumulative_counts=2))


@case("clip_grad=dict(max_norm=x)")
def _():
    run(wrapper=dict(clip_grad=dict(max_norm=0.05)))


@case("clip_grad=dict(clip_value=x)")
def _():
    run(wrapper=dict(clip_grad=dict(type="value", clip_value=0.05)))


class Stop(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if (runner.epoch, batch_idx) == (1, 1):
            runner.train_loop.stop_training = True


@case("train_loop.stop_training = True")
def _():
    run(Stop(), train=epochs(4))


@case("CheckpointHook(interval=n, max_keep_ckpts=3, save_best=…)")
def _():
    saved = folder()
    keep = dict(type=CheckpointHook, interval=1, max_keep_ckpts=2, save_best="scripted", rule="less")
    run(valid=True, saved=saved, train=epochs(9), default_hooks=dict(checkpoint=keep))
    names = [file.stem for file in pathlib.Path(saved).glob("*.pth")]
    seen["epochs"] = sorted({int(name.split("_")[-1]) - 1 for name in names})


@case("EarlyStoppingHook")
def _():
    run(EarlyStoppingHook(monitor="scripted", rule="less", patience=2), valid=True, train=epochs(12))


@case("ParamSchedulerHook")
def _():
    warm_up = dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=4)
    drops = dict(type="MultiStepLR", by_epoch=True, milestones=[1, 2], gamma=0.5)
    run(train=epochs(3), param_scheduler=[warm_up, drops])


@case("EMAHook")
def _():
    ran = run(EMAHook(momentum=0.1))
    hook = next(hook for hook in ran.hooks if isinstance(hook, EMAHook))
    seen["average"] = flat(hook.ema_model.module.net)


@case("LoggerHook(interval=n)")
def _():
    ran = run(default_hooks=dict(logger=dict(type="LoggerHook", interval=2)))
    lines = [json.loads(line) for file in pathlib.Path(ran.log_dir).glob("vis_data/scalars.json") for line in open(file) if "loss" in line]
    seen["logged"] = [line["loss"] for line in lines]
    seen["axis"] = [line["step"] for line in lines]


@case("resume=True")
def _():
    saved = folder()
    keep = dict(type=CheckpointHook, interval=3, by_epoch=False, save_last=False)
    run(Stop3(), saved=saved, default_hooks=dict(checkpoint=keep))
    seen.clear()
    run(resume=True, load_from=f"{saved}/iter_3.pth")


class Stop3(Hook):
    priority = "LOWEST"

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 2:
            runner.train_loop.stop_training = True
            runner.train_loop._max_epochs = 0


@case("epoch_10.pth")
def _():
    for name, optimizer in OPTIMIZERS.items():
        how = dict(optimizer=lambda net: optimizer(net.parameters()), default_hooks=dict(checkpoint=dict(type=CheckpointHook)))

        def first():
            saved = folder()
            run(saved=saved, **how)
            shutil.copy(f"{saved}/epoch_2.pth", written(f"{name}.pth"))
            return f"{saved}/epoch_2.pth"

        continued(first, lambda path: run(resume=True, load_from=path, train=epochs(4), **how))


class Draw(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        seen["draws"].append(torch.rand(()).item())


@case("torch.rand")
def _():
    saved = folder()
    keep = dict(type=CheckpointHook, interval=3, by_epoch=False, save_last=False)
    run(Draw(), saved=saved, default_hooks=dict(checkpoint=keep), randomness=dict(seed=5))
    whole = seen["draws"].copy()
    seen.clear()
    run(Draw(), resume=True, load_from=f"{saved}/iter_3.pth", randomness=dict(seed=5))
    draws_continue(whole, seen["draws"])


if __name__ == "__main__":
    main()
