"""Compares the metrics with torchmetrics on random cases: at least 200 of each family.

    python tests/interop/metrics.py [rounds] [seed]

It writes the cases to a temporary file and runs the Rust test that compares them, each over the whole
data and merged from 1 to 7 uneven parts, to 1e-6. Needs torch and torchmetrics 1.9; see
`tests/reference/metrics.py`.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reference"))
import metrics  # noqa: E402

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 7
found = metrics.cases(rounds, seed)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "metrics.json"
    path.write_text(json.dumps({"torchmetrics": metrics.torchmetrics.__version__, "cases": found}))
    print(f"{len(found)} cases by torchmetrics {metrics.torchmetrics.__version__}, seed {seed}", flush=True)
    command = ["cargo", "test", "-p", "tests", "--test", "it", "--", "metrics::metrics_equal_torchmetrics", "--exact"]
    sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, "TRAINER_METRIC_CASES": str(path)}).returncode)
