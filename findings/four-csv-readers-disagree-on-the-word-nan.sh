#!/usr/bin/env bash
# Subject: Tables
# Guess: a float column with one `nan`, as Python, C and Rust print it, is a float column with NaN
# in each reader.
# Seen: pandas and DuckDB agree. pyarrow reads null, so the mean is that of the others. Polars
# makes the whole column text for `nan`, and a float column for `NaN`, `inf` and `-inf`.
# Versions: pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1
# Matters: one diverged step changes the type of a column of losses in one reader, and vanishes in
# another.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, math, pandas as pd, polars as pl, pyarrow as pa, pyarrow.csv

def seen(words):
    open("x.csv", "w").write("x\n" + "\n".join(words) + "\n")
    return {
        "pandas": pd.read_csv("x.csv")["x"].tolist(),
        "polars": pl.read_csv("x.csv")["x"].to_list(),
        "pyarrow": pa.csv.read_csv("x.csv")["x"].to_pylist(),
        "duckdb": [row[0] for row in duckdb.sql("from read_csv('x.csv', header = true)").fetchall()],
    }

print(read := seen(["1.5", "nan", "2"]))
assert math.isnan(read["pandas"][1]) and math.isnan(read["duckdb"][1])
assert read["pyarrow"] == [1.5, None, 2.0]
assert read["polars"] == ["1.5", "nan", "2"]
print(read := seen(["1.5", "NaN", "2"]))
assert math.isnan(read["polars"][1])
print(read := seen(["1.5", "inf", "-inf"]))
assert read["polars"] == [1.5, math.inf, -math.inf]
EOF
