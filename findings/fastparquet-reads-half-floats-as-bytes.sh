#!/usr/bin/env bash
# Subject: Tables
# Guess: a Parquet column of 16-bit floats is read as floats, or refused.
# Seen: fastparquet returns an object column with two bytes for each number, and no warning.
# pyarrow and Polars read 16-bit floats, DuckDB 32-bit ones.
# Versions: fastparquet 2026.9.0, pyarrow 26.0.1, polars 2.1.0, duckdb 2.0.1
# Matters: embeddings stored as half floats become strings of bytes in one of two engines of
# `pandas.read_parquet`.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  fastparquet==2026.9.0 pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1 pandas==3.1.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, fastparquet, numpy as np, polars as pl, pyarrow as pa, pyarrow.parquet as pq

pq.write_table(pa.table({"x": pa.array(np.array([1.0, 2.5], np.float16))}), "x.parquet")
for name, values in {
    "pyarrow": pq.read_table("x.parquet")["x"].to_pylist(),
    "polars": pl.read_parquet("x.parquet")["x"].to_list(),
    "duckdb": [row[0] for row in duckdb.sql("from 'x.parquet'").fetchall()],
    "fastparquet": fastparquet.ParquetFile("x.parquet").to_pandas()["x"].tolist(),
}.items():
    print(name, values)
    assert values == ([b"\x00<", b"\x00A"] if name == "fastparquet" else [1.0, 2.5]), values
EOF
