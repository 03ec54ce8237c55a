"""Writes `optimizers.safetensors`: 200 steps of each optimizer, computed by PyTorch.

The Rust tests read that file and repeat the same training with this crate.

To write the file again, in a separate virtual environment (Python 3.10 or newer):

    python3 -m venv refvenv
    refvenv/bin/pip install torch==2.13.0 numpy safetensors
    refvenv/bin/python tests/reference/optimizers.py

The script takes no arguments, needs no GPU, and writes `optimizers.safetensors` into its own folder.
It runs on the CPU with one thread and fixed seeds, trains everything twice, and stops
without writing if the two runs differ in any bit.

Model: Linear(8, 6), relu, Linear(6, 4); in every third step, from the first, `sometimes` times the
inputs is added, and `never` is unused. Mean cross entropy.
Step i (from 0 to 199) uses batch i % 5, and its loss is the one before that step's update.

Lion is not in PyTorch: it is implemented below, as algorithm 2 of its paper. PyTorch's Muon
iterates in bf16, whose products differ by processor, so no file can be a reference for it:
`muon_full_precision` is PyTorch's own source with `grad.bfloat16()` replaced by `grad.clone()`. In
the runs of Muon, AdamW updates the parameters that are not matrices.

Contents, with {kind} one of `float`, `double`:

    init.{parameter}                      float64  before the first step
    data.inputs                           float64  [5, 16, 8]
    data.labels                           int64    [5, 16]
    {kind}.{run}.losses                   float64  [10], of every 20th step, from the first
    {kind}.{run}.{parameter}              {kind}   after the last step
"""

import inspect

import torch
import torch.nn.functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, RMSprop, _muon

from common import make_twice, start, write

STEPS, EVERY = 200, 20
BATCHES, BATCH_SIZE = 5, 16
INPUTS, HIDDEN, CLASSES = 8, 6, 4

# One tensor at a time, no fused kernel: the plain formulas.
PLAIN = {"foreach": False}


class Lion:
    """Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, algorithm 2, line by line."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        self.params = list(params)
        self.lr, self.betas, self.weight_decay = lr, betas, weight_decay
        self.sign = -1 if maximize else 1
        self.momentum = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        beta1, beta2 = self.betas
        for p, m in zip(self.params, self.momentum):
            if p.grad is None:
                continue
            g = self.sign * p.grad
            c = beta1 * m + (1 - beta1) * g
            p.copy_(p - self.lr * (c.sign() + self.weight_decay * p))
            m.copy_(beta2 * m + (1 - beta2) * g)


class MuonAndAdamW:
    """Muon for the matrices, AdamW for the other parameters."""

    def __init__(self, params, **settings):
        params = list(params)
        self.both = [
            Muon([p for p in params if p.ndim == 2], **settings),
            AdamW([p for p in params if p.ndim != 2], lr=1e-3, **PLAIN),
        ]

    def zero_grad(self):
        for optimizer in self.both:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.both:
            optimizer.step()


class MuonInFullPrecision(MuonAndAdamW):
    def step(self):
        in_bf16 = _muon._zeropower_via_newtonschulz
        source = inspect.getsource(in_bf16)
        assert source.count("grad.bfloat16()") == 1
        namespace = vars(_muon).copy()
        exec(source.replace("grad.bfloat16()", "grad.clone()"), namespace)
        _muon._zeropower_via_newtonschulz = namespace["_zeropower_via_newtonschulz"]
        try:
            super().step()
        finally:
            _muon._zeropower_via_newtonschulz = in_bf16


# The same settings are in tests/it/optimizers.rs.
RUNS = {
    "sgd": (SGD, dict(lr=0.1, **PLAIN)),
    "sgd_momentum": (SGD, dict(lr=0.05, momentum=0.9, **PLAIN)),
    "sgd_nesterov": (SGD, dict(lr=0.05, momentum=0.9, nesterov=True, **PLAIN)),
    "sgd_dampening": (SGD, dict(lr=0.1, momentum=0.9, dampening=0.5, weight_decay=1e-3, **PLAIN)),
    "sgd_maximize": (SGD, dict(lr=1e-3, momentum=0.9, weight_decay=0.1, maximize=True, **PLAIN)),
    "adam": (Adam, dict(lr=1e-2, **PLAIN)),
    "adam_weight_decay": (Adam, dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=1e-2, **PLAIN)),
    "adam_amsgrad": (Adam, dict(lr=1e-2, betas=(0.9, 0.9), amsgrad=True, **PLAIN)),
    "adam_maximize": (Adam, dict(lr=1e-3, weight_decay=0.1, maximize=True, **PLAIN)),
    "adamw": (AdamW, dict(lr=1e-2, weight_decay=0.1, **PLAIN)),
    "adamw_amsgrad": (AdamW, dict(lr=1e-2, betas=(0.9, 0.9), amsgrad=True, **PLAIN)),
    "adamw_maximize": (AdamW, dict(lr=1e-3, maximize=True, **PLAIN)),
    "rmsprop": (RMSprop, dict(lr=1e-3, **PLAIN)),
    "rmsprop_centered": (RMSprop, dict(lr=1e-3, alpha=0.9, eps=1e-4, centered=True, **PLAIN)),
    "rmsprop_momentum": (RMSprop, dict(lr=1e-3, momentum=0.5, weight_decay=1e-2, **PLAIN)),
    "rmsprop_maximize": (RMSprop, dict(lr=1e-4, weight_decay=1e-2, maximize=True, **PLAIN)),
    "adagrad": (Adagrad, dict(lr=0.05, **PLAIN)),
    "adagrad_lr_decay": (
        Adagrad,
        dict(lr=0.1, lr_decay=0.01, weight_decay=1e-2, initial_accumulator_value=0.1, **PLAIN),
    ),
    "adagrad_maximize": (Adagrad, dict(lr=1e-3, maximize=True, **PLAIN)),
    "lion": (Lion, dict(lr=1e-3)),
    "lion_weight_decay": (Lion, dict(lr=1e-3, betas=(0.95, 0.98), weight_decay=0.1)),
    "lion_maximize": (Lion, dict(lr=1e-4, maximize=True)),
    "muon_full_precision": (MuonInFullPrecision, dict(lr=1e-2)),
    "muon_match_rms_adamw": (
        MuonInFullPrecision,
        dict(lr=1e-2, momentum=0.9, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw"),
    ),
}
KINDS = {"float": torch.float32, "double": torch.float64}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(INPUTS, HIDDEN)
        self.fc2 = torch.nn.Linear(HIDDEN, CLASSES)
        self.sometimes = torch.nn.Parameter(0.1 * torch.randn(CLASSES, INPUTS))
        self.never = torch.nn.Parameter(torch.ones(2, 2))

    def forward(self, x, step):
        logits = self.fc2(F.relu(self.fc1(x)))
        return logits + x @ self.sometimes.T if step % 3 == 0 else logits


def make_data():
    """Normal inputs, labelled by a random linear map so that there is something to learn."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(BATCHES, BATCH_SIZE, INPUTS, generator=generator)
    teacher = torch.randn(INPUTS, CLASSES, generator=generator)
    return inputs.double(), (inputs @ teacher).argmax(dim=-1)


def train(model, optimizer, inputs, labels):
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[step % BATCHES], step), labels[step % BATCHES])
        loss.backward()
        if step % EVERY == 0:
            losses.append(loss.item())
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def make_all():
    torch.manual_seed(1)
    initial = Net()
    inputs, labels = make_data()
    tensors = {f"init.{name}": p.detach().double() for name, p in initial.named_parameters()}
    tensors["data.inputs"], tensors["data.labels"] = inputs, labels
    for kind, dtype in KINDS.items():
        for run, (optimizer, settings) in RUNS.items():
            model = Net().to(dtype)
            model.load_state_dict(initial.state_dict())
            losses = train(model, optimizer(model.parameters(), **settings), inputs.to(dtype), labels)
            tensors[f"{kind}.{run}.losses"] = losses
            for name, p in model.named_parameters():
                if name != "never":
                    tensors[f"{kind}.{run}.{name}"] = p.detach().clone()
                else:
                    assert (p == 1).all()
    return tensors


def main():
    start()

    tensors = make_twice(make_all)
    write("optimizers.safetensors", tensors)
    for run in RUNS:
        first, *_, last = tensors[f"double.{run}.losses"].tolist()
        print(f"{run}: first {first:.6f}, last {last:.6f}")


if __name__ == "__main__":
    main()
