"""Writes `schedules.safetensors`: learning rates from PyTorch's own schedulers.

The Rust tests read that file and compare this crate's schedules with it.

To write the file again, in a separate virtual environment (Python 3.10 or newer):

    python3 -m venv refvenv
    refvenv/bin/pip install torch==2.13.0 numpy safetensors
    refvenv/bin/python tests/reference/schedules.py

The script takes no arguments, needs no GPU, and writes `schedules.safetensors` into its own folder.

Every run has 1,000 steps and a base learning rate of 0.05, which is OneCycleLR's `max_lr`. The
value of step n is the rate that the optimizer's step n uses. All values are read from
the optimizer after `scheduler.step()`: most of PyTorch's schedulers multiply the previous rate, and
their rounding errors add up. If a scheduler also has a closed form (`_get_closed_form_lr`), the
script stops without writing if the two differ by more than 1e-13, and prints the largest
differences.

Contents, float64 [1000] each:

    {run}               learning rates; the runs are below
    {run}.momentum      the momentum of the runs of MOMENTA, whose rates are in {run}
    plateau.metric      the metric passed to ReduceLROnPlateau after each step
    plateau.*           its learning rates, with the settings below
"""

import math
import sys
import warnings

import torch
from torch.optim import lr_scheduler as lrs

from common import start, write

STEPS, BASE = 1000, 0.05
METRIC_SEED = 3


def one_cycle(**settings):
    return lambda opt: lrs.OneCycleLR(opt, BASE, STEPS, cycle_momentum=False, **settings)


def sequential(opt):
    parts = [lrs.LinearLR(opt, 0.1, 1.0, 100), lrs.CosineAnnealingLR(opt, STEPS - 100)]
    return lrs.SequentialLR(opt, parts, [100])


def sequential_of_three(opt):
    parts = [lrs.ConstantLR(opt, 0.5, 50), lrs.ExponentialLR(opt, 0.995), lrs.StepLR(opt, 100, 0.5)]
    return lrs.SequentialLR(opt, parts, [200, 500])


def chained(opt):
    return lrs.ChainedScheduler([lrs.ConstantLR(opt, 0.1, 300), lrs.ExponentialLR(opt, 0.999)], opt)

RUNS = {
    "constant": lambda opt: lrs.ConstantLR(opt, 0.25, 300),
    "linear": lambda opt: lrs.LinearLR(opt, 1.0 / 3.0, 1.0, 400),
    "linear_down": lambda opt: lrs.LinearLR(opt, 1.0, 0.0, STEPS),
    "cosine": lambda opt: lrs.CosineAnnealingLR(opt, STEPS),
    "cosine_eta_min": lambda opt: lrs.CosineAnnealingLR(opt, STEPS, 0.002),
    "restarts": lambda opt: lrs.CosineAnnealingWarmRestarts(opt, 150),
    "restarts_growing": lambda opt: lrs.CosineAnnealingWarmRestarts(opt, 70, 2, 0.001),
    "exponential": lambda opt: lrs.ExponentialLR(opt, 0.995),
    "step": lambda opt: lrs.StepLR(opt, 130, 0.3),
    "multi_step": lambda opt: lrs.MultiStepLR(opt, [100, 350, 900], 0.2),
    "polynomial_1": lambda opt: lrs.PolynomialLR(opt, STEPS, 1.0),
    "polynomial_2": lambda opt: lrs.PolynomialLR(opt, 600, 2.0),
    "one_cycle": one_cycle(),
    "one_cycle_linear": one_cycle(anneal_strategy="linear", pct_start=0.123, div_factor=10.0),
    "one_cycle_three": one_cycle(three_phase=True, final_div_factor=100.0),
    "one_cycle_linear_three": one_cycle(three_phase=True, anneal_strategy="linear", pct_start=0.4567),
    "sequential": sequential,
    "sequential_of_three": sequential_of_three,
    "chained": chained,
}

MOMENTA = {
    "one_cycle": {},
    "one_cycle_linear": {"anneal_strategy": "linear", "pct_start": 0.123, "div_factor": 10.0, "base_momentum": 0.5},
    "one_cycle_three": {"three_phase": True, "final_div_factor": 100.0, "max_momentum": 0.99},
}

PLATEAUS = {
    "rel": {"patience": 5, "cooldown": 3, "factor": 0.5, "min_lr": 1e-4},
    "abs": {"patience": 20, "factor": 0.7, "threshold": 0.01, "threshold_mode": "abs"},
    "max": {"patience": 10, "mode": "max", "threshold": 0.02, "cooldown": 30},
}


def sgd(**settings):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE, **settings)


def rates(make):
    """Returns the rates, and their largest deviation from the closed form, or None if the scheduler has none."""
    opt = sgd()
    scheduler = make(opt)
    used, off = [], None
    for step in range(STEPS):
        used.append(opt.param_groups[0]["lr"])
        if hasattr(scheduler, "_get_closed_form_lr"):
            off = max(off or 0.0, abs(used[-1] - scheduler._get_closed_form_lr()[0]))
        opt.step()
        if step + 1 < STEPS:
            scheduler.step()
    return torch.tensor(used, dtype=torch.float64), off


def momenta(opt, read, settings):
    """Returns the momentum that each step of an optimizer uses with OneCycleLR."""
    scheduler = lrs.OneCycleLR(opt, BASE, STEPS, **settings)
    used = []
    for step in range(STEPS):
        used.append(read(opt.param_groups[0]))
        opt.step()
        if step + 1 < STEPS:
            scheduler.step()
    return torch.tensor(used, dtype=torch.float64)


def momentum(settings):
    of_sgd = momenta(sgd(momentum=0.9), lambda group: group["momentum"], settings)
    adam = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=BASE)
    of_adam = momenta(adam, lambda group: group["betas"][0], settings)
    if not of_sgd.equal(of_adam):
        sys.exit("the momentum of SGD and beta1 of AdamW differ; nothing written")
    return of_sgd


def make_metric():
    """Returns a metric that falls with noise and stalls, with a drop in the middle and two NaN values."""
    generator = torch.Generator().manual_seed(METRIC_SEED)
    noise = torch.randn(STEPS, generator=generator, dtype=torch.float64)
    n = torch.arange(STEPS, dtype=torch.float64)
    metric = 0.3 + torch.exp(-n / 120.0) + 0.02 * noise - 0.25 * (n >= 500)
    metric[40] = metric[41] = math.nan
    return metric


def plateau(metric, settings):
    opt = sgd()
    scheduler = lrs.ReduceLROnPlateau(opt, **settings)
    used = []
    for value in metric.tolist():
        used.append(opt.param_groups[0]["lr"])
        scheduler.step(value)
    return torch.tensor(used, dtype=torch.float64)


def main():
    start()
    warnings.simplefilter("ignore")  # SequentialLR itself triggers deprecation warnings

    tensors, differences = {}, {}
    for run, make in RUNS.items():
        tensors[run], differences[run] = rates(make)
    for run, settings in MOMENTA.items():
        tensors[f"{run}.momentum"] = momentum(settings)
    metric = make_metric()
    tensors["plateau.metric"] = metric
    for name, settings in PLATEAUS.items():
        tensors[f"plateau.{name}"] = plateau(metric, settings)

    for run, off in differences.items():
        print(f"{run}: {'no closed form' if off is None else f'within {off:.1e} of its closed form'}")
        if off is not None and off > 1e-13:
            sys.exit(f"{run}: expected a difference of at most 1e-13; nothing written")
    for name in PLATEAUS:
        print(f"plateau.{name}: {len(set(tensors[f'plateau.{name}'].tolist()))} different rates")
    write("schedules.safetensors", tensors, infinite=("plateau.metric",), max_bytes=250_000)


if __name__ == "__main__":
    main()
