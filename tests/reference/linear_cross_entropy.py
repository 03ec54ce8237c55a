"""Writes `linear_cross_entropy.safetensors`: the loss of a linear layer and its gradients, from PyTorch.

The Rust tests read that file and compute the same without the logits.

    python3 -m venv refvenv
    refvenv/bin/pip install torch==2.13.0 numpy safetensors
    refvenv/bin/python tests/reference/linear_cross_entropy.py

The script takes no arguments, needs no GPU, and writes into its own folder. It computes everything twice, with one thread and
a fixed seed, and stops without writing if a bit differs.

Contents, all float64 except `targets`:

    hidden [37, 6], weight [11, 6], bias [11], class_weights [11], targets int64 [37], of which some are -100
    {case}.loss [], {case}.{hidden,weight,bias}   the mean cross-entropy and its gradients, where {case} is one of
    plain, bias, smoothed (0.1), weighted, all
"""

import torch
import torch.nn.functional as F

from common import make_twice, start, write

CASES = {
    "plain": (False, False, 0.0),
    "bias": (True, False, 0.0),
    "smoothed": (False, False, 0.1),
    "weighted": (False, True, 0.0),
    "all": (True, True, 0.1),
}


def make_all():
    generator = torch.Generator().manual_seed(4)
    normal = lambda *size: torch.randn(*size, dtype=torch.float64, generator=generator)
    tensors = {"hidden": normal(37, 6), "weight": normal(11, 6), "bias": normal(11)}
    tensors["class_weights"] = torch.rand(11, dtype=torch.float64, generator=generator) + 0.5
    tensors["targets"] = torch.randint(11, (37,), generator=generator)
    tensors["targets"][torch.rand(37, generator=generator) < 0.2] = -100
    given = dict(tensors)
    for case, (has_bias, is_weighted, smoothing) in CASES.items():
        leaves = {name: given[name].clone().requires_grad_() for name in ("hidden", "weight", "bias")}
        logits = F.linear(leaves["hidden"], leaves["weight"], leaves["bias"] if has_bias else None)
        weights = given["class_weights"] if is_weighted else None
        loss = F.cross_entropy(logits, given["targets"], weights, label_smoothing=smoothing)
        loss.backward()
        tensors[f"{case}.loss"] = loss.detach()
        for name, leaf in leaves.items():
            tensors[f"{case}.{name}"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return tensors


def main():
    start()
    write("linear_cross_entropy.safetensors", make_twice(make_all), max_bytes=100_000)


if __name__ == "__main__":
    main()
