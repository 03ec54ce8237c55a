"""The rows of the page about PyTorch Ignite, with Ignite."""

import logging
import pathlib

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import (
    Checkpoint,
    CosineAnnealingScheduler,
    DiskSaver,
    EarlyStopping,
    EMAHandler,
    LRScheduler,
    ModelCheckpoint,
    create_lr_scheduler_with_warmup,
)
from ignite.metrics import RunningAverage

from common import *

logging.disable(logging.CRITICAL)


def made(**settings):
    net = Net()
    optimizer = sgd(net)
    trainer = create_supervised_trainer(net, optimizer, loss, **settings)
    return net, optimizer, trainer


def loss(prediction, y):
    found = F.mse_loss(prediction, y)
    seen["losses"].append(found.item())
    return found


def run(*handlers, epochs=2, **settings):
    """Trains. A handler is an event and a function of the engine, the network and the optimizer that returns it."""
    net, optimizer, trainer = made(**settings)
    for event, handler in handlers:
        trainer.add_event_handler(event, handler(trainer, net, optimizer))
    trainer.run(loader(train_rows()), max_epochs=epochs)
    seen["steps"] = [len(seen["rates"])]
    return net, trainer


@case("trainer.run(data, max_epochs=n)")
def _():
    net, _, trainer = made()
    trainer.run(loader(train_rows()), max_epochs=2)
    trainer.run(loader(train_rows()), max_epochs=3)
    seen["steps"] = [len(seen["rates"])]


@case("gradient_accumulation_steps=n")
def _():
    run(gradient_accumulation_steps=2)


@case("engine.terminate()")
def _():
    run((Events.ITERATION_COMPLETED(once=3), lambda trainer, *_: lambda engine: engine.terminate()))


@case("engine.terminate_epoch()")
def _():
    run((Events.ITERATION_COMPLETED(once=3), lambda trainer, *_: lambda engine: engine.terminate_epoch()))


@case("EarlyStopping(patience=n, score_function=…)")
def _():
    scores = iter(SCRIPT)
    stopping = lambda trainer, *_: EarlyStopping(2, lambda engine: -next(scores), trainer)
    run((Events.EPOCH_COMPLETED, stopping), epochs=12)


@case("ModelCheckpoint(n_saved=n, score_function=…)")
def _():
    scores, saved = iter(SCRIPT), folder()
    keep = ModelCheckpoint(saved, n_saved=2, score_function=lambda engine: -next(scores))
    net, _, trainer = made()
    trainer.add_event_handler(Events.EPOCH_COMPLETED, keep, {"model": net})
    trainer.run(loader(train_rows()), max_epochs=9)
    found = [float(file.stem.split("_")[-1]) for file in pathlib.Path(saved).iterdir()]
    seen["epochs"] = sorted(SCRIPT.index(-score) for score in found)


@case('Checkpoint({…, "trainer": trainer}, …)')
def _():
    saved = folder()
    net, optimizer, trainer = made()
    objects = {"model": net, "optimizer": optimizer, "trainer": trainer}
    keep = Checkpoint(objects, DiskSaver(saved), n_saved=None)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), keep)
    trainer.run(loader(train_rows()), max_epochs=2)
    seen.clear()
    net, optimizer, trainer = made()
    Checkpoint.load_objects({"model": net, "optimizer": optimizer, "trainer": trainer}, f"{saved}/checkpoint_3.pt")
    trainer.run(loader(train_rows()), max_epochs=2)
    seen["steps"] = [trainer.state.iteration]


@case("EMAHandler(net, momentum=x)")
def _():
    net, _, trainer = made()
    averaging = EMAHandler(net, momentum=0.1)
    averaging.attach(trainer)
    trainer.run(loader(train_rows()), max_epochs=2)
    seen["average"] = flat(averaging.ema_model)


@case("RunningAverage(output_transform=…)")
def _():
    net, _, trainer = made()
    RunningAverage(output_transform=lambda output: output).attach(trainer, "average")
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED, lambda engine: seen["logged"].append(engine.state.metrics["average"])
    )
    trainer.run(loader(train_rows()), max_epochs=2)


@case("LRScheduler(StepLR(…))")
def _():
    run((Events.ITERATION_STARTED, lambda _, __, optimizer: LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))))


@case('CosineAnnealingScheduler(opt, "lr", start, end, n)')
def _():
    run((Events.ITERATION_STARTED, lambda _, __, optimizer: CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.01, 5)))


@case("create_lr_scheduler_with_warmup(…, warmup_start_value=0.0, warmup_duration=n)")
def _():
    def schedule(trainer, net, optimizer):
        falling = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return create_lr_scheduler_with_warmup(falling, warmup_start_value=0.0, warmup_duration=3)

    run((Events.ITERATION_STARTED, schedule))


if __name__ == "__main__":
    main()
