"""Writes `losses.safetensors`: losses and parameters from PyTorch's own optimizers.

The Rust tests read that file and repeat the same training with this crate.

To write the file again, in a separate virtual environment (Python 3.10 or newer):

    python3 -m venv refvenv
    refvenv/bin/pip install torch==2.13.0 numpy safetensors
    refvenv/bin/python tests/reference/losses.py

The script takes no arguments, needs no GPU, and writes `losses.safetensors` into its own folder.
It runs on the CPU with one thread and fixed seeds, trains everything twice, and stops
without writing if the two runs differ in any bit. On one machine the file is always
the same, byte for byte; on another processor, other kernels may change the last bits.

Model: Linear(64, 32), relu, Linear(32, 10); mean cross entropy; all float32.
Step i (from 0 to 99) uses batch i % 5, and its loss is the one before that step's update.

Contents:

    init.{fc1,fc2}.{weight,bias}          float32  parameters before the first step
    data.inputs                           float32  [5, 32, 64]
    data.labels                           int64    [5, 32]
    losses.{run}                          float64  [100], the float32 losses widened
    final.{run}.{fc1,fc2}.{weight,bias}   float32  parameters after the last step

where {run} is one of

    sgd            SGD, lr 0.1
    sgd_momentum   SGD, lr 0.05, momentum 0.9, weight decay 1e-3
    sgd_nesterov   SGD, lr 0.05, momentum 0.9, Nesterov
    adamw          AdamW, lr 1e-3, betas (0.9, 0.999), eps 1e-8, weight decay 1e-2
"""

import copy

import torch
import torch.nn.functional as F

from common import make_twice, start, write

STEPS = 100
BATCHES, BATCH_SIZE = 5, 32
INPUTS, HIDDEN, CLASSES = 64, 32, 10
MODEL_SEED, DATA_SEED = 1, 2

# One tensor at a time, no fused kernel: the plain formulas.
PLAIN = {"foreach": False, "fused": False}

# The defaults of AdamW are spelled out so that the file does not depend on them.
RUNS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, **PLAIN),
    "sgd_momentum": lambda params: torch.optim.SGD(
        params, lr=0.05, momentum=0.9, weight_decay=1e-3, **PLAIN
    ),
    "sgd_nesterov": lambda params: torch.optim.SGD(
        params, lr=0.05, momentum=0.9, nesterov=True, **PLAIN
    ),
    "adamw": lambda params: torch.optim.AdamW(
        params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, **PLAIN
    ),
}


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(INPUTS, HIDDEN)
        self.fc2 = torch.nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def parameters(model, prefix):
    return {f"{prefix}.{name}": p.detach().clone() for name, p in model.named_parameters()}


def make_data():
    """Normal inputs, labelled by a random linear map so that there is something to learn."""
    generator = torch.Generator().manual_seed(DATA_SEED)
    inputs = torch.randn(BATCHES, BATCH_SIZE, INPUTS, generator=generator)
    teacher = torch.randn(INPUTS, CLASSES, generator=generator)
    return inputs, (inputs @ teacher).argmax(dim=-1)


def train(model, optimizer, inputs, labels):
    losses = []
    for step in range(STEPS):
        batch = step % BATCHES
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def make_all():
    torch.manual_seed(MODEL_SEED)
    initial = Mlp()
    inputs, labels = make_data()
    tensors = parameters(initial, "init")
    tensors["data.inputs"] = inputs
    tensors["data.labels"] = labels
    for run, make_optimizer in RUNS.items():
        model = copy.deepcopy(initial)
        optimizer = make_optimizer(model.parameters())
        tensors[f"losses.{run}"] = train(model, optimizer, inputs, labels)
        tensors.update(parameters(model, f"final.{run}"))
    return tensors


def main():
    start()

    tensors = make_twice(make_all)
    write("losses.safetensors", tensors, max_bytes=200_000)
    for run in RUNS:
        losses = tensors[f"losses.{run}"]
        print(f"{run}: first {losses[0].item():.9f}, last {losses[-1].item():.9f}")


if __name__ == "__main__":
    main()
