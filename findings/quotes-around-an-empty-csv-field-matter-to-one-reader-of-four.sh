#!/usr/bin/env bash
# Subject: Tables
# Guess: readers agree whether `""` and an empty field are the same: either both are missing, or
# the quoted one is an empty text.
# Seen: only Polars distinguishes them. For pandas and DuckDB both are missing, for pyarrow both
# are empty texts.
# Versions: pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1
# Matters: dropping rows without a label drops empty labels as well, or nothing.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, pandas as pd, polars as pl, pyarrow as pa, pyarrow.csv

open("x.csv", "w").write('text,y\n"",1\n,2\nz,3\n')
seen = {
    "pandas": pd.read_csv("x.csv")["text"].isna().tolist(),
    "polars": pl.read_csv("x.csv")["text"].is_null().to_list(),
    "pyarrow": [value is None for value in pa.csv.read_csv("x.csv")["text"].to_pylist()],
    "duckdb": [row[0] is None for row in duckdb.sql("select text from 'x.csv' order by y").fetchall()],
}
print("missing:", seen)
assert seen == {
    "pandas": [True, True, False],
    "polars": [False, True, False],
    "pyarrow": [False, False, False],
    "duckdb": [True, True, False],
}
EOF
