#!/usr/bin/env python3
"""Trains a small convolutional network with PyTorch's DistributedDataParallel, for
`tests/it/interop/ddp.rs` and `trainer/benches/ranks.rs`. Started by torchrun.

Reads the data, the weights and the settings from the folder given as argument. Each rank writes its
losses, averaged over the ranks, and the wall-clock and processor time of a step to `ddp-RANK.json`.
"""

import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy, max_pool2d
from torch.nn.parallel import DistributedDataParallel


class Network(nn.Module):
    def __init__(self, weights):
        super().__init__()
        channels = weights["conv1.weight"].shape[0]
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.fc = nn.Linear(2 * channels * 7 * 7, 10)
        self.to(weights["conv1.weight"].dtype)
        self.load_state_dict(weights)

    def forward(self, xs):
        xs = max_pool2d(self.conv1(xs).relu(), 2)
        xs = max_pool2d(self.conv2(xs).relu(), 2)
        return self.fc(xs.flatten(1))


def main():
    folder = pathlib.Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = load_file(folder / "data.safetensors")
    inputs, labels = data["inputs"], data["labels"]
    network = DistributedDataParallel(Network(load_file(folder / "weights.safetensors")))
    if config["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    share, losses = config["batch"] // world, []
    # The mean over the ranks is the mean over the batch, because all ranks have equally many rows.
    assert share * world == config["batch"] and len(labels) % config["batch"] == 0
    for _ in range(config["passes"]):
        for first in range(rank * share, len(labels), config["batch"]):
            if len(losses) == config["warm_up"]:
                dist.barrier()
                start = (time.perf_counter(), time.process_time())
            rows = slice(first, first + share)
            optimizer.zero_grad()
            loss = cross_entropy(network(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    count = len(losses) - config["warm_up"]
    seconds, processor_seconds = (time.perf_counter() - start[0]) / count, (time.process_time() - start[1]) / count
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    result = {"losses": (losses / world).tolist(), "seconds": seconds, "processor_seconds": processor_seconds}
    (folder / f"ddp-{rank}.json").write_text(json.dumps(result))
    # PyTorch's own cleanup sometimes aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
