"""Writes `accumulation.safetensors`: gradient accumulation over uneven batches, computed by PyTorch.

The Rust tests read that file and repeat the same training with this crate.

To write the file again, in a separate virtual environment (Python 3.10 or newer):

    python3 -m venv refvenv
    refvenv/bin/pip install torch==2.13.0 numpy safetensors
    refvenv/bin/python tests/reference/accumulation.py

The script takes no arguments, needs no GPU, and writes `accumulation.safetensors` into its own folder.

Model: Linear(4, 8), tanh, Linear(8, 1), in float64, for each of 6 tokens in 101 rows. SGD, lr 0.1,
5 steps over all of the data. The loss is the squared error, as a mean over all tokens of all
rows (`samples`), or over the unmasked tokens (`tokens`).

`large` takes each step on one batch of 101 rows. `accumulated` takes it on batches of 32, 32, 32
and 5 rows: the sum of the errors of each divided by the number of elements of all four.

Contents:

    init.{fc1,fc2}.{weight,bias}                   float64  parameters before the first step
    data.inputs                                    float64  [101, 6, 4]
    data.targets                                   float64  [101, 6]
    data.mask                                      float64  [101, 6], 1 for an unmasked token
    final.{loss}.{run}.{fc1,fc2}.{weight,bias}     float64  parameters after the last step

where {loss} is `samples` or `tokens`, and {run} is `large` or `accumulated`.
"""

import copy

import torch

from common import start, write

ROWS, TOKENS, INPUTS, HIDDEN = 101, 6, 4, 8
STEPS, BATCH_SIZE = 5, 32
SEED = 3


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(INPUTS, HIDDEN)
        self.fc2 = torch.nn.Linear(HIDDEN, 1)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x))).squeeze(-1)


def parameters(model, prefix):
    return {f"{prefix}.{name}": p.detach().clone() for name, p in model.named_parameters()}


def make_data():
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(ROWS, TOKENS, INPUTS, generator=generator, dtype=torch.float64)
    targets = torch.sin(inputs.sum(-1))
    lengths = torch.randint(1, TOKENS + 1, (ROWS, 1), generator=generator)
    mask = (torch.arange(TOKENS) < lengths).double()
    return inputs, targets, mask


def train(model, inputs, targets, mask, batch_size):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False, fused=False)
    count = mask.sum()
    for _ in range(STEPS):
        optimizer.zero_grad()
        for batch in zip(*(tensor.split(batch_size) for tensor in (inputs, targets, mask))):
            x, y, counted = batch
            loss = ((model(x) - y).square() * counted).sum() / count
            loss.backward()
        optimizer.step()


def main():
    start()

    torch.manual_seed(SEED)
    initial = Mlp().double()
    inputs, targets, mask = make_data()
    tensors = parameters(initial, "init")
    tensors.update({"data.inputs": inputs, "data.targets": targets, "data.mask": mask})
    for loss, counted in (("samples", torch.ones_like(mask)), ("tokens", mask)):
        for run, batch_size in (("large", ROWS), ("accumulated", BATCH_SIZE)):
            model = copy.deepcopy(initial)
            train(model, inputs, targets, counted, batch_size)
            tensors.update(parameters(model, f"final.{loss}.{run}"))
    write("accumulation.safetensors", tensors)


if __name__ == "__main__":
    main()
