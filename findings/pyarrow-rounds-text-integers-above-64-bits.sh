#!/usr/bin/env bash
# Subject: Tables
# Guess: an integer that does not fit 64 signed bits is text or unsigned in pyarrow, or an error;
# only numbers with a point become floats.
# Seen: the column becomes double, for CSV and JSON lines, and all its integers are rounded to 53
# bits: 2^63 + 1 and 2^53 + 1 both lose their last digit. pandas, Polars and DuckDB keep them.
# Versions: pyarrow 26.0.1, pandas 3.1.1, polars 2.1.0, duckdb 2.0.1
# Matters: 64-bit hashes and seeds are unsigned: about half of the files with them lose the
# identity of their rows.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, json, pandas as pd, polars as pl, pyarrow as pa, pyarrow.csv, pyarrow.json

numbers = [2**63 + 1, 2**53 + 1]
open("x.csv", "w").write("x\n" + "\n".join(map(str, numbers)) + "\n")
open("x.jsonl", "w").writelines(json.dumps({"x": number}) + "\n" for number in numbers)
for name, read in {
    "pyarrow, CSV": pa.csv.read_csv("x.csv")["x"].to_pylist(),
    "pyarrow, JSON": pa.json.read_json("x.jsonl")["x"].to_pylist(),
    "pandas": pd.read_csv("x.csv")["x"].tolist(),
    "polars": pl.read_csv("x.csv")["x"].to_list(),
    "duckdb": [row[0] for row in duckdb.sql("from 'x.csv'").fetchall()],
}.items():
    print(name, read)
    assert read == ([float(2**63), float(2**53)] if "pyarrow" in name else numbers)
EOF
