#!/usr/bin/env python3
"""Times the updates of torchmetrics' metrics, for `trainer/benches/torchmetrics.rs`.

Reads numbers from standard input, one per line. For each number `n`, updates each metric `n` times with
the tensors in the folder given as argument, and prints its processor time in nanoseconds per update.
"""

import pathlib
import sys
import time

import torch
import torchmetrics.classification as tc
import torchmetrics.regression as tr
from safetensors.torch import load_file

torch.set_num_threads(1)
data = load_file(str(pathlib.Path(sys.argv[1]) / "tensors.safetensors"))
METRICS = [
    ("small", tc.MulticlassAccuracy(10, average="micro")),
    ("large", tc.MulticlassAccuracy(1000, average="micro")),
    ("small", tc.MulticlassF1Score(10, average="macro")),
    ("small", tc.MulticlassConfusionMatrix(10)),
    ("small", tc.MulticlassAUROC(10, thresholds=50)),
    ("outputs", tr.MeanSquaredError()),
    ("outputs", tr.PearsonCorrCoef(num_outputs=1)),
]

for line in sys.stdin:
    runs, times = int(line), []
    for name, metric in METRICS:
        pred, target = data[f"{name}.pred"], data[f"{name}.target"]
        metric.reset()
        start = time.thread_time_ns()
        for _ in range(runs):
            metric.update(pred, target)
        times.append((time.thread_time_ns() - start) / runs)
    print(*times, flush=True)
