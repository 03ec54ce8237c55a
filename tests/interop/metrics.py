#!/usr/bin/env python3
"""Writes at least 200 random cases of each metric, with torchmetrics' values, for the Rust test to compare.

    python tests/interop/metrics.py FOLDER [rounds] [seed]

Each case is compared over the whole data and merged from 1 to 7 uneven parts, to 1e-6.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import metrics  # noqa: E402

FOLDER = pathlib.Path(sys.argv[1])
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 200
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 7

metrics.torch.set_num_threads(1)
found = metrics.cases(ROUNDS, SEED)
text = json.dumps({"torchmetrics": metrics.torchmetrics.__version__, "cases": found})
(FOLDER / "metrics.json").write_text(text)
