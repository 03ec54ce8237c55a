#!/usr/bin/env bash
# Subject: Tables
# Guess: a blank line between rows of several columns is skipped, as by Python's csv, pandas,
# pyarrow, DuckDB and Rust's csv crate.
# Seen: Polars returns a row of nulls for it.
# Versions: polars 2.1.0, pandas 3.1.1, pyarrow 26.0.1, duckdb 2.0.1
# Matters: files joined with a blank line between them gain rows, and counts differ between tools.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  polars==2.1.0 pandas==3.1.1 pyarrow==26.0.1 duckdb==2.0.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import csv, duckdb, pandas as pd, polars as pl, pyarrow as pa, pyarrow.csv

open("x.csv", "w").write("x,y\n1,2\n\n3,4\n")
rows = {
    "csv": len(list(csv.DictReader(open("x.csv")))),
    "pandas": len(pd.read_csv("x.csv")),
    "pyarrow": pa.csv.read_csv("x.csv").num_rows,
    "duckdb": len(duckdb.sql("from 'x.csv'").fetchall()),
    "polars": len(pl.read_csv("x.csv")),
}
print(rows, pl.read_csv("x.csv").rows())
assert rows == {"csv": 2, "pandas": 2, "pyarrow": 2, "duckdb": 2, "polars": 3}
assert pl.read_csv("x.csv").row(1) == (None, None)
EOF
