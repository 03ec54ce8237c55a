#!/usr/bin/env bash
# Subject: Tables
# Guess: a Parquet file with the columns `a` and `A` has these names in each reader, or is refused
# as ambiguous.
# Seen: DuckDB, whose names ignore case, calls the second one `A_1`, and `select A` returns the
# first. pyarrow, Polars and fastparquet keep both names.
# Versions: duckdb 2.0.1, pyarrow 26.0.1, polars 2.1.0
# Matters: for features named after variables (`n` and `N`) a query takes the wrong column without
# an error.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, polars as pl, pyarrow as pa, pyarrow.parquet as pq

pq.write_table(pa.table({"a": [1], "A": [2]}), "x.parquet")
print("polars", pl.read_parquet("x.parquet").columns, "duckdb", duckdb.sql("from 'x.parquet'").columns)
assert pl.read_parquet("x.parquet").columns == ["a", "A"]
assert duckdb.sql("from 'x.parquet'").columns == ["a", "A_1"]
chosen = duckdb.sql('select "A" from \'x.parquet\'').fetchall()[0]
print("duckdb, column A:", chosen)
assert chosen == (1,)
EOF
