#!/usr/bin/env python3
"""Measures PyTorch's DistributedDataParallel and FSDP2 for `trainer/benches/sharding.rs`: one rank, whose variables the
benchmark sets, in the scene that it passes on. `compile` builds the counter of memory in `trainer/sys` for this PyTorch.
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils import cpp_extension

ROOT = pathlib.Path(__file__).resolve().parents[2]
COUNTER = ROOT / "target" / "memory_counter.so"
WIDTH, WORDS, LENGTH, STEPS, WARM_UP = 512, 4096, 128, 20, 4
MARK = 1 << 30


def compile_counter():
    folders = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()] + ["-lc10", "-ltorch_cpu"]
    source = ROOT / "trainer" / "sys" / "cpp" / "memory.cpp"
    subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", *folders, source, "-o", COUNTER, *libraries], check=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        rows = hidden.shape[0]
        parts = self.qkv(self.norm1(hidden)).chunk(3, -1)
        heads = [part.contiguous().view(rows, LENGTH, 8, WIDTH // 8).transpose(1, 2) for part in parts]
        mixed = scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, LENGTH, WIDTH))
        return hidden + self.down(gelu(self.up(self.norm2(hidden))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, words):
        hidden = self.embedding(words)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden @ self.embedding.weight.T


def wrapped(stage, model):
    if stage == "ddp":
        return DistributedDataParallel(model)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    # Without resharding, it keeps whole parameters in a step, as stage 2 does.
    settings = {"mesh": mesh, "reshard_after_forward": stage == "fsdp2"}
    for block in model.blocks:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def sent():
    return int(next(line for line in open("/proc/self/io") if line.startswith("wchar:")).split()[1])


def train(stage, moment):
    """Trains and returns the bytes of the parameters, and the bytes that were sent and the processor time in a step."""
    mark = lambda at: at == moment and torch.empty(MARK, dtype=torch.uint8)
    steps = STEPS if moment == "time" else WARM_UP + 2
    rank = dist.get_rank()
    model = Gpt()
    parameters = sum(4 * parameter.numel() for parameter in model.parameters())
    model = wrapped(stage, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for nth in range(steps):
        if nth >= WARM_UP:
            mark("between")
        if nth == WARM_UP:
            start = sent(), time.process_time()
        words = ((torch.arange(LENGTH) + LENGTH * rank) * 7 + nth).remainder(WORDS).view(1, LENGTH)
        logits = model(words)
        loss = cross_entropy(logits.view(-1, WORDS), words.roll(1, 1).view(-1))
        loss.backward()
        if nth >= WARM_UP:
            mark("backward")
        optimizer.step()
        optimizer.zero_grad()
        del logits, loss
    counted = steps - WARM_UP
    return {
        "parameters": parameters,
        "sent": (sent() - start[0]) // counted,
        "processor": (time.process_time() - start[1]) / counted,
    }


def main():
    if sys.argv[1] == "compile":
        return compile_counter()
    stage, moment, meeting = sys.argv[1:]
    torch.set_num_threads(1)
    count, bytes_now, peak = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
    counter = ctypes.CDLL(COUNTER)
    assert not counter.trainer_memory_count_start(ctypes.byref(count))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    measured = train(stage, moment)
    counter.trainer_memory_count(count, ctypes.byref(bytes_now), ctypes.byref(peak))
    measured["peak"] = peak.value - (MARK if moment in ("between", "backward") else 0)
    print(json.dumps(measured), flush=True)
    dist.barrier()
    # PyTorch's own cleanup sometimes aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
