#!/usr/bin/env python3
"""Compares loading data with PyTorch's DataLoader, WebDataset and MosaicML's streaming, and prints a table.

Each loader reads the same samples, in its own format, in batches of 64: an array of bytes and a label. The samples are
written into a temporary folder, one format at a time. Measured are the samples per second from the second batch on, the time from
opening the data to the first batch of a run that is resumed at 90 % of an epoch, and the most memory that the processes of a run had
together (PSS, where pages that processes share count once). A run that has no batch to show after --limit seconds is ended.

The libraries are installed into a virtual environment in target/bench-data, once. Options: --gb (2.5), --seconds (10) for each
measurement, --limit (300), --folder for the data; further arguments are passed on to cargo.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import benches
import environments

BATCH = 64
BYTES = 8192
PER_SHARD = 1000
SHUFFLED = 10_000


# In the environment: writing.


def samples(count):
    import numpy

    for index in range(count):
        yield index, numpy.random.default_rng(index).integers(0, 256, BYTES, dtype=numpy.uint8)


def write_tar(folder, count):
    import webdataset

    with webdataset.ShardWriter(f"{folder}/%06d.tar", maxcount=PER_SHARD, verbose=0) as writer:
        for index, image in samples(count):
            writer.write({"__key__": f"{index:09}", "bin": image.tobytes(), "cls": index % 1000})


def write_parquet(folder, count):
    import pyarrow
    from pyarrow import parquet

    rows = samples(count)
    for shard in range(count // PER_SHARD):
        own = list(itertools.islice(rows, PER_SHARD))
        table = pyarrow.table({"image": [image.tobytes() for _, image in own], "label": [index % 1000 for index, _ in own]})
        parquet.write_table(table, f"{folder}/{shard:06}.parquet", compression="snappy", use_dictionary=False)


def write_mds(folder, count):
    from streaming import MDSWriter

    size = PER_SHARD * (BYTES + 16)
    with MDSWriter(out=f"{folder}/mds", columns={"image": "bytes", "label": "int"}, size_limit=size) as writer:
        for index, image in samples(count):
            writer.write({"image": image.tobytes(), "label": index % 1000})


def write_tokens(folder, count):
    """The samples as one array, for the map-style dataset of PyTorch, and as tokens of two bytes."""
    with open(f"{folder}/tokens.bin", "wb") as file:
        for _, image in samples(count):
            file.write(image.tobytes())


# In the environment: reading.


def mapped(folder, workers, start, batches):
    """PyTorch's DataLoader over an array that is mapped into memory. It has no position: batches are read and left out."""
    import numpy
    import torch

    class Images(torch.utils.data.Dataset):
        def __init__(self):
            self.images = numpy.memmap(f"{folder}/tokens.bin", dtype=numpy.uint8, mode="r").reshape(-1, BYTES)

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return torch.from_numpy(self.images[index].copy()), index % 1000

    loader = torch.utils.data.DataLoader(Images(), batch_size=BATCH, shuffle=True, num_workers=workers)
    return itertools.islice(loader, start, None)


def webdataset(folder, workers, start, batches):
    """WebDataset, which has no position: batches are read and left out."""
    import torch
    import webdataset

    def decode(sample):
        image, label = sample
        return torch.frombuffer(bytearray(image), dtype=torch.uint8), int(label)

    shards = sorted(str(path) for path in pathlib.Path(folder).glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=42).shuffle(SHUFFLED // max(workers, 1))
    dataset = dataset.to_tuple("bin", "cls").map(decode).batched(BATCH)
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=workers)
    return itertools.islice(loader, start, None)


def mosaicml(folder, workers, start, batches):
    """MosaicML's streaming, resumed with its state."""
    import numpy
    import torch
    from streaming import StreamingDataLoader, StreamingDataset

    class Images(StreamingDataset):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            image = torch.from_numpy(numpy.frombuffer(bytearray(sample["image"]), dtype=numpy.uint8))
            return image, sample["label"]

    dataset = Images(local=f"{folder}/mds", shuffle=True, batch_size=BATCH, shuffle_block_size=SHUFFLED)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers)
    if start > 0:
        state = dataset.state_dict(start * BATCH, from_beginning=True)
        loader.load_state_dict(state)
    return iter(loader)


def read(loader, folder, workers, start, seconds, count):
    import torch  # noqa: F401, not a part of what is measured

    batches = count // BATCH
    opened = time.perf_counter()
    passed = loader(folder, workers, int(batches * start), batches)
    next(passed)
    first = time.perf_counter()
    number = 0
    for _ in passed:
        number += 1
        if time.perf_counter() - first > seconds:
            break
    rate = number * BATCH / (time.perf_counter() - first)
    print(json.dumps({"first": first - opened, "rate": rate}), flush=True)
    os._exit(0)  # the end of workers is not measured


# Outside: measuring.


def processes_of(root):
    """Returns the ids of a process and of all that it started."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parents.setdefault(int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]), []).append(int(folder.name))
        except (OSError, ValueError):
            continue
    found, open_ones = [], [root]
    while open_ones:
        process = open_ones.pop()
        found.append(process)
        open_ones += parents.get(process, [])
    return found


def memory_of(root):
    """Returns the memory of a process and of all that it started, in bytes."""
    total = 0
    for process in processes_of(root):
        try:
            lines = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def measure(command, environment, limit):
    """Runs a command, and returns what it printed as JSON, if it did within `limit` seconds, with the most memory that it had."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    most, started = 0, time.monotonic()
    while process.poll() is None:
        most = max(most, memory_of(process.pid))
        time.sleep(0.1)
        if time.monotonic() - started > limit:
            for each in processes_of(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            process.wait()
            return {"first": None, "rate": None, "memory": most}
    output, errors = process.communicate()
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        sys.exit(f"bench-data: {command} failed:\n{errors}")
    return {**json.loads(lines[-1]), "memory": most}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--folder")
    options, cargo = parser.parse_known_args()
    python = environments.python("bench-data")
    count = int(options.gb * 1e9 / BYTES) // PER_SHARD * PER_SHARD
    program, environment = benches.build("data", ["--features", "parquet,tar", *cargo])

    def run(command):
        command = [str(part) for part in command]
        return measure(command, environment if command[0] == program else os.environ, options.limit)

    def ours(kind):
        def command(folder, workers, start):
            path = f"{folder}/tokens.bin" if kind == "tokens" else folder
            return [program, kind, path, workers, start, options.seconds]

        return command

    def theirs(name):
        def command(folder, workers, start):
            return [python, __file__, "--read", name, folder, workers, start, options.seconds, count]

        return command

    formats = {
        "tar": [("Shards::tar", ours("tar")), ("WebDataset", theirs("webdataset"))],
        "parquet": [("Shards::parquet", ours("parquet"))],
        "mds": [("MosaicML streaming", theirs("mosaicml"))],
        "tokens": [("TokenFile", ours("tokens")), ("PyTorch DataLoader", theirs("mapped"))],
    }
    print(f"{count:,} samples of {BYTES:,} bytes ({count * BYTES / 1e9:.1f} GB) in shards of {PER_SHARD:,}, batches of {BATCH}\n")
    print("| loader | samples/s, 0 workers | 2 workers | resumed at 90 % after, 0 workers | 2 workers | memory, 0 workers | 2 workers |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for kind, loaders in formats.items():
        with tempfile.TemporaryDirectory(prefix="trainer-bench-data-", dir=options.folder) as folder:
            subprocess.run([python, __file__, "--write", kind, folder, str(count)], check=True)
            for name, command in loaders:
                runs = [[run(command(folder, workers, start)) for workers in (0, 2)] for start in (0, 0.9)]
                cells = ["none" if run["rate"] is None else f"{run['rate']:,.0f}" for run in runs[0]]
                cells += [f"> {options.limit:.0f} s" if run["first"] is None else f"{run['first']:.2f} s" for run in runs[1]]
                memory = [max(runs[0][at]["memory"], runs[1][at]["memory"]) for at in (0, 1)]
                cells += [f"{size / 1e6:,.0f} MB" for size in memory]
                print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        kind, folder, count = sys.argv[2:]
        globals()[f"write_{kind}"](folder, int(count))
    elif sys.argv[1:2] == ["--read"]:
        name, folder, workers, start, seconds, count = sys.argv[2:]
        read(globals()[name], folder, int(workers), float(start), float(seconds), int(count))
    else:
        sys.exit(main())
