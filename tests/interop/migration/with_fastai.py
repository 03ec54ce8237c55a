"""The rows of the page about fastai, with fastai."""

import contextlib
import io
import pathlib
import shutil


import torch
from fastai.basics import (
    Callback,
    CancelBatchException,
    CancelFitException,
    CancelStepException,
    CancelTrainException,
    DataLoaders,
    Learner,
)
from fastai.callback.schedule import ParamScheduler, SchedCos
from fastai.callback.tracker import EarlyStoppingCallback, ReduceLROnPlateau, SaveModelCallback
from fastai.callback.training import GradientAccumulation, GradientClip, ShortEpochCallback
from fastai.data.load import DataLoader as Loader
from fastai.learner import AvgSmoothLoss
from fastai.optimizer import SGD, Adam
from fastai.torch_core import set_seed

from common import *


def reset_in_f64(self):
    self.count, self.val = 0, torch.tensor(0.0)


# The smoothed loss of fastai 2.8 begins as an f32, which torch does not mix with the losses of a
# model in f64.
AvgSmoothLoss.reset = reset_in_f64


class Record(Callback):
    order = 1000

    def after_loss(self):
        if self.training:
            seen["losses"].append(self.loss.item())

    def after_step(self):
        seen["weights"] += flat(self.model)
        seen["rates"] += [group["lr"] for group in self.opt.hypers]
        seen["steps"] = [seen["steps"][0] + 1 if seen["steps"] else 1]

    def after_validate(self):
        if len(measured := self.learn.recorder._valid_mets):
            seen["valid"].append(float(measured[0].value))


def learner(*callbacks, net=None, opt_func=SGD, lr=0.1, batch=4, valid=None, **settings):
    net = net or Net()
    data = [list(zip(*rows_)) for rows_ in (train_rows(), valid_rows())]
    loaders = DataLoaders(*(Loader(rows_, bs=batch, shuffle=False, device="cpu") for rows_ in data), device="cpu")
    return Learner(
        loaders, net, nn.MSELoss(), opt_func=opt_func, lr=lr, cbs=[Record(), *callbacks], path=folder(), **settings
    )


def run(*callbacks, epochs=2, **settings):
    learn = learner(*callbacks, **settings)
    with learn.no_logging(), learn.no_bar(), contextlib.redirect_stdout(io.StringIO()):
        learn.fit(epochs)
    return learn


@case("learn.fit(n)")
def _():
    run(epochs=3)


@case("learn.validate()")
def _():
    learn = learner()
    with learn.no_logging(), learn.no_bar():
        loss = learn.validate()[0]
    seen.clear()
    seen["test"] = [loss]


@case("opt_func=Adam")
def _():
    run(opt_func=Adam, lr=0.01)


@case("learn.recorder.values")
def _():
    learn = run(epochs=3)
    seen["logged"] = [row[0] for row in learn.recorder.values]


@case("GradientAccumulation(n_acc)")
def _():
    run(GradientAccumulation(8))


@case("GradientClip(max_norm)")
def _():
    run(GradientClip(0.05))


@case("ShortEpochCallback(pct)")
def _():
    run(ShortEpochCallback(0.5))


class Cancel(Callback):
    def __init__(self, what, event, at=2):
        self.what, self.event, self.at = what, event, at
        setattr(self, event, self.cancel)

    def cancel(self):
        if self.training and self.iter == self.at and self.epoch == 0:
            raise self.what()


@case("CancelBatchException")
def _():
    run(Cancel(CancelBatchException, "before_batch"))


@case("CancelStepException")
def _():
    run(Cancel(CancelStepException, "before_step"))
    # `after_step` comes after a skipped step, too.
    del seen["weights"], seen["rates"], seen["steps"]


@case("CancelTrainException")
def _():
    run(Cancel(CancelTrainException, "after_batch"))


@case("CancelFitException")
def _():
    run(Cancel(CancelFitException, "after_batch"))


class Script(Callback):
    """Puts the scripted metric where the trackers read it: the column of the validation loss."""

    order = 55

    def after_epoch(self):
        self.recorder.values[-1][1] = SCRIPT[self.epoch]


@case("SaveModelCallback")
def _():
    learn = run(Script(), SaveModelCallback(), epochs=3)
    seen["final"] = flat(learn.model)


@case("EarlyStoppingCallback")
def _():
    run(Script(), EarlyStoppingCallback(patience=2), epochs=12)


@case("ReduceLROnPlateau(patience=n, factor=x)")
def _():
    run(Script(), ReduceLROnPlateau(patience=2, factor=2.0), epochs=12)


@case("fit_one_cycle")
def _():
    learn = learner(opt_func=Adam)
    with learn.no_logging(), learn.no_bar():
        learn.fit_one_cycle(2, 0.01)


@case("ParamScheduler")
def _():
    run(ParamScheduler({"lr": SchedCos(0.1, 0.01)}))


@case("slice(1e-5, 1e-3)")
def _():
    def split(net):
        return [list(net.fc1.parameters()), list(net.fc2.parameters())]

    run(lr=slice(1e-2, 1e-1), splitter=split)
    # The head's rate comes last.
    assert seen["rates"][:2] == [0.01, 0.1]


@case("freeze_to")
def _():
    learn = learner(splitter=lambda net: [list(net.fc1.parameters()), list(net.fc2.parameters())])
    with learn.no_logging(), learn.no_bar():
        learn.freeze_to(1)
        learn.fit(1)
        learn.unfreeze()
        learn.fit(1)
    del seen["rates"]


@case("set_seed(n, reproducible=True)")
def _():
    set_seed(5)
    seen["numbers"] = torch.randn(20).tolist() + torch.rand(3).tolist()


def converted(file):
    """What the guide says about the state of fastai's Adam."""
    opt = torch.load(file, weights_only=False)["opt"]
    [hyper] = opt["hypers"]
    state, groups = {}, []
    for nth, own in enumerate(opt["state"]):
        state[nth] = {"exp_avg": own["grad_avg"], "exp_avg_sq": own["sqr_avg"], "step": own["step"]}
        groups.append({
            "params": [nth], "betas": (hyper["mom"], hyper["sqr_mom"]), "eps": hyper["eps"], "amsgrad": False,
            "weight_decay": hyper["wd"] if own.get("do_wd", True) else 0.0, "decoupled_weight_decay": True,
        })
    return {"state": state, "param_groups": groups}


@case("learn.save(file)")
def _():
    def first():
        learn = run(opt_func=Adam, lr=0.01)
        return learn.save("run")

    def then(path):
        learn = learner(opt_func=Adam, lr=0.01)
        learn.load(path.with_suffix(""), weights_only=False)
        with learn.no_logging(), learn.no_bar():
            learn.fit(4, start_epoch=2)

    def saved():
        path = first()
        shutil.copy(path, written("fastai.pth"))
        torch.save(converted(path), written("fastai-opt.pt"))
        return path

    continued(saved, then)
    del seen["valid"]


class Draw(Callback):
    def before_batch(self):
        seen["draws"].append(torch.rand(()).item())


@case("torch.rand")
def _():
    set_seed(5)
    learn = run(Draw(), epochs=2)
    whole = seen["draws"].copy()
    seen.clear()
    path = run(Draw(), epochs=1).save("run")
    seen.clear()
    set_seed(5)
    learn = learner(Draw())
    learn.load(path.with_suffix(""), weights_only=False)
    with learn.no_logging(), learn.no_bar():
        learn.fit(2, start_epoch=1)
    draws_continue(whole[2:], seen["draws"])


if __name__ == "__main__":
    main()
