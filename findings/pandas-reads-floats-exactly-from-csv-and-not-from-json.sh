#!/usr/bin/env bash
# Subject: Tables
# Guess: 17 digits written to a file come back as the same float: `read_csv` does it, so
# `read_json` does it.
# Seen: `read_csv` returns all 20,000 numbers exactly. `read_json` changes more than half of them
# in the last digits; with `precise_float=True` few are changed. Polars, pyarrow and DuckDB are
# exact for the same JSON lines.
# Versions: pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1
# Matters: two runs that are equal to the last bit differ after their logs were read, and
# comparing with a value from elsewhere fails.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, numpy as np, pandas as pd, polars as pl, pyarrow as pa, pyarrow.json

numbers = np.random.default_rng(0).standard_normal(20_000)
pd.DataFrame({"x": numbers}).to_csv("x.csv", index=False)
open("x.jsonl", "w").writelines(f'{{"x": {float(number)!r}}}\n' for number in numbers)
changed = {
    "pandas, CSV": pd.read_csv("x.csv")["x"].to_numpy(),
    "pandas, JSON": pd.read_json("x.jsonl", lines=True)["x"].to_numpy(),
    "pandas, JSON, precise": pd.read_json("x.jsonl", lines=True, precise_float=True)["x"].to_numpy(),
    "polars, JSON": pl.read_ndjson("x.jsonl")["x"].to_numpy(),
    "pyarrow, JSON": pa.json.read_json("x.jsonl")["x"].to_numpy(),
    "duckdb, JSON": duckdb.sql("from 'x.jsonl'").fetchnumpy()["x"],
}
changed = {name: int((read != numbers).sum()) for name, read in changed.items()}
print("changed of 20,000:", changed)
assert changed.pop("pandas, JSON") > 10_000
assert changed.pop("pandas, JSON, precise") < 5_000
assert set(changed.values()) == {0}
EOF
