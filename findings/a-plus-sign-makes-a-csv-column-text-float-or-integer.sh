#!/usr/bin/env bash
# Subject: Tables
# Guess: `+5` is an integer in a CSV column, as for C, Python and Rust, whichever library reads
# it.
# Seen: pandas reads integers, pyarrow floats; for Polars and DuckDB one `+5` makes the whole
# column text.
# Versions: pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1
# Matters: a column of differences printed with signs has three types in four readers.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, pandas as pd, polars as pl, pyarrow as pa, pyarrow.csv

open("x.csv", "w").write("x,y\n+5,1\n6,2\n")
seen = {
    "pandas": pd.read_csv("x.csv")["x"].tolist(),
    "polars": pl.read_csv("x.csv")["x"].to_list(),
    "pyarrow": pa.csv.read_csv("x.csv")["x"].to_pylist(),
    "duckdb": [row[0] for row in duckdb.sql("select x from 'x.csv'").fetchall()],
}
print(seen)
expected = {"pandas": [5, 6], "polars": ["+5", "6"], "pyarrow": [5.0, 6.0], "duckdb": ["+5", "6"]}
assert seen == expected
assert {name: type(read[0]) for name, read in seen.items()} == {name: type(read[0]) for name, read in expected.items()}
EOF
