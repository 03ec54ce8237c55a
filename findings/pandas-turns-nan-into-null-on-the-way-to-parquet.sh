#!/usr/bin/env bash
# Subject: Tables
# Guess: a float column with NaN has NaN in the Parquet file, since Parquet's floats have NaN.
# Seen: `to_parquet` writes null for NaN with both engines, so Polars and DuckDB see a missing
# value: a mean that was NaN in Polars is now the mean of the others. Polars and
# `pyarrow.Table.from_pydict` keep NaN.
# Versions: pandas 3.1.1, pyarrow 26.0.1, fastparquet 2026.9.0, polars 2.1.0
# Matters: whether a diverged value shows in a mean depends on who wrote the file.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pandas==3.1.1 pyarrow==26.0.1 fastparquet==2026.9.0 polars==2.1.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import pandas as pd, polars as pl

frame = pd.DataFrame({"x": [1.0, float("nan")]})
for engine in ["pyarrow", "fastparquet"]:
    frame.to_parquet("x.parquet", engine=engine)
    column = pl.read_parquet("x.parquet")["x"]
    print(engine, column.to_list(), "mean", column.mean())
    assert column.to_list() == [1.0, None] and column.mean() == 1.0
pl.DataFrame({"x": [1.0, float("nan")]}).write_parquet("x.parquet")
column = pl.read_parquet("x.parquet")["x"]
print("polars", column.to_list(), "mean", column.mean())
assert column.null_count() == 0 and column.is_nan().to_list() == [False, True]
EOF
