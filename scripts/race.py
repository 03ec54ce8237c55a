#!/usr/bin/env python3
"""Times a training step of this trainer, of PyTorch Lightning, trainer-tools, fastai and MMEngine, and prints a table.

Each contestant trains the same model (an MLP 64→32→10, batches of 32, plain SGD, the CPU, one thread) on the same batch, without hooks
and with ten hooks that count steps. What a framework adds by itself, such as progress bars, loggers and checkpoints, is off.
Contestants run in turn, each in a process of its own. The time is taken where the loader hands out batches, after a warm-up.
Reported are medians over the rounds, the median of the ratios to PyTorch's hand-written loop in the same round, and what ten
hooks add, with the median absolute deviation of the differences.

The frameworks are installed into a virtual environment in target/race, once. Options: --rounds (5), --steps (3000) in each round;
further arguments are passed on to cargo.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import benches
import environments
from environments import ROOT

# The time since the epoch at which a process was started, in seconds.
STARTED = "TRAINER_RACE_STARTED"
HOOKS = 10
WARM_UP = 500


# In the environment: the contestants.


class Loader:
    """Hands out one batch again and again, and measures the time of a step."""

    def __init__(self, steps):
        import torch

        self.steps, self.dataset, self.batch_size = steps, range(32 * steps), 32
        self.batch = (torch.randn(32, 64), torch.randint(10, (32,)))
        self.device = torch.device("cpu")

    def __len__(self):
        return WARM_UP + self.steps + 1 if self.steps else 0

    def __iter__(self):
        for step in range(len(self)):
            if step == 1:
                self.first = time.time() - float(os.environ[STARTED])
            if step == WARM_UP:
                began = time.perf_counter()
            if step == WARM_UP + self.steps:
                self.step = (time.perf_counter() - began) / self.steps
            yield self.batch


def mlp():
    from torch import nn

    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def sgd(model):
    import torch

    return torch.optim.SGD(model.parameters(), lr=1e-3)


def pytorch(loader, hooks):
    from torch.nn.functional import cross_entropy

    model, total = mlp(), 0.0
    optimizer = sgd(model)
    for inputs, labels in loader:
        loss = cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()


def trainer_tools(loader, hooks):
    from torch.nn.functional import cross_entropy
    from trainer_tools.hooks.base import BaseHook
    from trainer_tools.trainer import Trainer

    class Count(BaseHook):
        steps = 0

        def after_step(self, trainer):
            self.steps += 1

    def step(batch, trainer):
        inputs, labels = batch
        return {"loss": cross_entropy(trainer.model(inputs), labels)}

    model = mlp()
    own = [Count() for _ in range(hooks)]
    Trainer(model, step, train_dl=loader, optim=sgd(model), epochs=1, hooks=own, device="cpu").fit()


def lightning(loader, hooks):
    import lightning
    from torch.nn.functional import cross_entropy

    class Count(lightning.Callback):
        steps = 0

        def on_train_batch_end(self, *_):
            self.steps += 1

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = mlp()

        def training_step(self, batch, _):
            inputs, labels = batch
            return cross_entropy(self.model(inputs), labels)

        def configure_optimizers(self):
            return sgd(self)

    own = [Count() for _ in range(hooks)]
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, barebones=True, callbacks=own)
    trainer.fit(Module(), train_dataloaders=loader)


def fastai(loader, hooks):
    import functools

    import torch
    from fastai.callback.core import Callback
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import OptimWrapper
    from torch.nn.functional import cross_entropy

    class Count(Callback):
        steps = 0

        def after_batch(self):
            self.steps += 1

    optimizer = functools.partial(OptimWrapper, opt=torch.optim.SGD)
    own = [Count() for _ in range(hooks)]
    learner = Learner(DataLoaders(loader, Loader(0)), mlp(), loss_func=cross_entropy, opt_func=optimizer, lr=1e-3, cbs=own)
    with learner.no_logging():
        learner.fit(1)


def mmengine(loader, hooks):
    from mmengine.hooks import Hook
    from mmengine.model import BaseModel
    from mmengine.optim import OptimWrapper
    from mmengine.runner import Runner
    from torch.nn.functional import cross_entropy

    class Count(Hook):
        steps = 0

        def after_train_iter(self, *_, **__):
            self.steps += 1

    class Model(BaseModel):
        def __init__(self):
            super().__init__()
            self.model = mlp()

        def forward(self, inputs, labels, mode="loss"):
            return {"loss": cross_entropy(self.model(inputs), labels)}

    model = Model()
    defaults = ["runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint"]
    with tempfile.TemporaryDirectory() as folder:
        Runner(
            model,
            folder,
            train_dataloader=loader,
            train_cfg={"by_epoch": True, "max_epochs": 1},
            optim_wrapper=OptimWrapper(sgd(model)),
            default_hooks=dict.fromkeys(defaults),
            custom_hooks=[Count() for _ in range(hooks)],
            log_level="ERROR",
        ).train()


# Each contestant, with the package whose version is shown.
FRAMEWORKS = {
    "PyTorch, hand-written loop": (pytorch, "torch"),
    "trainer-tools": (trainer_tools, "trainer-tools"),
    "MMEngine": (mmengine, "mmengine"),
    "fastai": (fastai, "fastai"),
    "Lightning": (lightning, "lightning"),
}


def contestant(name, steps, hooks):
    """Runs a contestant in this process, and prints its times in seconds, and its version."""
    import torch

    torch.set_num_threads(1)
    loader = Loader(steps)
    run, package = FRAMEWORKS[name]
    with contextlib.redirect_stdout(io.StringIO()):
        run(loader, hooks)
    version = importlib.metadata.version(package).split("+")[0]
    print("\n" + json.dumps({"version": version, "step": loader.step, "first": loader.first}))


# The race.


def measure(command, environment):
    """Returns what a contestant prints in its last line."""
    environment = {**environment, STARTED: str(time.time()), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"race: {' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def race(rounds, steps, arguments):
    python, (program, environment) = environments.python("race"), benches.build("race", arguments)
    ours = {"**trainer**": "trainer", "tch, hand-written loop": "tch"}
    commands = {}
    for name in [*ours, *FRAMEWORKS]:
        for hooks in [0] if "loop" in name else [0, HOOKS]:
            numbers = [str(steps), str(hooks)]
            own = [program, ours[name], *numbers] if name in ours else [python, __file__, "--contestant", name, *numbers]
            commands[name, hooks] = own
    results = {key: [] for key in commands}
    for nth in range(rounds):
        print(f"race: round {nth + 1} of {rounds}", file=sys.stderr, flush=True)
        for key, command in commands.items():
            results[key].append(measure(command, environment if command[0] == program else os.environ))
    return results


def table(results):
    def median(key, what):
        return statistics.median(result[what] for result in results[key])

    base = results["PyTorch, hand-written loop", 0]

    def ratio(key):
        ratios = [own["step"] / loop["step"] for own, loop in zip(results[key], base)]
        return f"{statistics.median(ratios):.2f} ×"

    def added(name):
        pairs = zip(results.get((name, HOOKS), []), results[name, 0])
        more = [1e6 * (own["step"] - base["step"]) for own, base in pairs]
        if not more:
            return ""
        middle = statistics.median(more)
        return f"{round(middle)} ± {statistics.median(abs(one - middle) for one in more):.0f} µs"

    print(f"| | a step | of PyTorch's loop | {HOOKS} hooks add | start to first step |\n|---|---|---|---|---|")
    names = sorted({name for name, _ in results}, key=lambda name: median((name, 0), "step"))
    for name in names:
        framework, *what = name.split(",")
        shown = ",".join([f"{framework} {results[name, 0][0]['version']}", *what])
        step, first = 1e6 * median((name, 0), "step"), median((name, 0), "first")
        print(f"| {shown} | {step:.0f} µs | {ratio((name, 0))} | {added(name)} | {first:.2f} s |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--contestant", nargs=3, metavar=("NAME", "STEPS", "HOOKS"), help=argparse.SUPPRESS)
    options, arguments = parser.parse_known_args()
    if options.contestant:
        name, steps, hooks = options.contestant
        return contestant(name, int(steps), int(hooks))
    table(race(options.rounds, options.steps, arguments))


if __name__ == "__main__":
    main()
