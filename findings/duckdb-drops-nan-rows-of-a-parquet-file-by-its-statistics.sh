#!/usr/bin/env bash
# Subject: Tables
# Guess: a query on a Parquet file gives the rows that the same query gives on the table loaded
# from it.
# Seen: DuckDB counts NaN as the largest number, so `x > 5` holds for NaN in a table. The
# statistics of a Parquet row group leave NaN out, and DuckDB skips the group whose largest number
# is 3: the row with NaN is missing when the file is queried directly. pyarrow skips it for `~(x
# <= 5)`. Polars, with the same order of NaN, finds the row either way.
# Versions: duckdb 2.0.1, pyarrow 26.0.1, polars 2.1.0
# Matters: a filter that looks for broken values finds them in memory and not in the file.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, polars as pl, pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq

pq.write_table(pa.table({"i": [0, 1, 2], "x": [1.0, float("nan"), 3.0]}), "x.parquet")
statistics = pq.ParquetFile("x.parquet").metadata.row_group(0).column(1).statistics
print("largest value in the statistics:", statistics.max)
assert statistics.max == 3.0

duckdb.sql("create table loaded as from 'x.parquet'")
loaded = duckdb.sql("select i from loaded where x > 5").fetchall()
direct = duckdb.sql("select i from 'x.parquet' where x > 5").fetchall()
print("duckdb, x > 5: loaded", loaded, "file", direct)
assert loaded == [(1,)] and direct == []

not_small = ~(ds.field("x") <= 5)
loaded = pq.read_table("x.parquet").filter(not_small)["i"].to_pylist()
direct = pq.read_table("x.parquet", filters=not_small)["i"].to_pylist()
print("pyarrow, not x <= 5: loaded", loaded, "file", direct)
assert loaded == [1] and direct == []

large = pl.col("x") > 5
loaded = pl.read_parquet("x.parquet").filter(large)["i"].to_list()
direct = pl.scan_parquet("x.parquet").filter(large).collect()["i"].to_list()
print("polars, x > 5: loaded", loaded, "file", direct)
assert loaded == [1] and direct == [1]
EOF
