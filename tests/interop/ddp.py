#!/usr/bin/env python3
"""Trains a small convolutional network with PyTorch's DistributedDataParallel, or with Lightning's
strategy `ddp`, for `tests/it/interop/ddp.rs` and `trainer/benches/ranks.rs`. Started by torchrun.

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


class Loader:
    """The batches of this rank, in order, for all passes. Measures the time of a step after the warm-up."""

    def __init__(self, folder, config):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        data = load_file(folder / "data.safetensors")
        self.inputs, self.labels = data["inputs"], data["labels"]
        share, labels = config["batch"] // self.world, len(self.labels)
        # All ranks have equally many rows, so the mean over the ranks is that over the batch.
        assert share * self.world == config["batch"] and labels % config["batch"] == 0
        firsts = range(self.rank * share, labels, config["batch"])
        self.rows = [slice(first, first + share) for first in firsts] * config["passes"]
        self.warm_up = config["warm_up"]

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        last, clocks = len(self.rows) - 1, (time.perf_counter, time.process_time)
        for at, rows in enumerate(self.rows):
            if at == self.warm_up:
                dist.barrier()
                start = [clock() for clock in clocks]
            if at == last:
                times = [(clock() - began) / (last - self.warm_up) for clock, began in zip(clocks, start)]
                self.seconds, self.processor_seconds = times
            yield self.inputs[rows], self.labels[rows]


def optimizer_of(network, config):
    if config["optimizer"] == "sgd":
        return torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)


def pytorch(network, loader, config):
    dist.init_process_group("gloo")
    network = DistributedDataParallel(network)
    optimizer, losses = optimizer_of(network, config), []
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(network(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def lightning(network, loader, config):
    import lightning as lightning_package

    losses = []

    class Module(lightning_package.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch, _):
            inputs, labels = batch
            loss = cross_entropy(self.network(inputs), labels)
            losses.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return optimizer_of(self, config)

    trainer = lightning_package.Trainer(
        max_epochs=1, accelerator="cpu", devices=loader.world, strategy="ddp", barebones=True, use_distributed_sampler=False
    )
    trainer.fit(Module(), train_dataloaders=loader)
    return losses


def main():
    folder = pathlib.Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    torch.set_num_threads(1)
    loader = Loader(folder, config)
    run = {"pytorch": pytorch, "lightning": lightning}[config.get("framework", "pytorch")]
    losses = torch.stack(run(Network(load_file(folder / "weights.safetensors")), loader, config))
    dist.all_reduce(losses)
    result = {"losses": (losses / loader.world).tolist(), "seconds": loader.seconds, "processor_seconds": loader.processor_seconds}
    (folder / f"ddp-{loader.rank}.json").write_text(json.dumps(result))
    # PyTorch's own cleanup sometimes aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
