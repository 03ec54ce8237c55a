#!/usr/bin/env bash
# Subject: Tables
# Guess: an INT96 time stamp, as Spark and Hive write it, is a day number and nanoseconds, so each
# reader returns the date or refuses it.
# Seen: pyarrow and fastparquet count nanoseconds since 1970 in 64 bits, which end in 2262, and
# wrap around: the year 3000 is read as 1830, without an error. Polars and DuckDB read 3000, and
# pyarrow with `coerce_int96_timestamp_unit="us"`, too.
# Versions: pyarrow 26.0.1, fastparquet 2026.9.0, polars 2.1.0, duckdb 2.0.1
# Matters: `9999-12-31`, the usual mark of "no end", becomes an ordinary date in the past.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pyarrow==26.0.1 fastparquet==2026.9.0 polars==2.1.0 duckdb==2.0.1 pandas==3.1.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import datetime, duckdb, fastparquet, polars as pl, pyarrow as pa, pyarrow.parquet as pq

far = pa.array([datetime.datetime(3000, 1, 1)], pa.timestamp("us"))
pq.write_table(pa.table({"x": far}), "x.parquet", use_deprecated_int96_timestamps=True)
years = {
    "pyarrow": pq.read_table("x.parquet")["x"][0].as_py().year,
    "fastparquet": fastparquet.ParquetFile("x.parquet").to_pandas()["x"][0].year,
    "polars": pl.read_parquet("x.parquet")["x"][0].year,
    "duckdb": duckdb.sql("from 'x.parquet'").fetchall()[0][0].year,
    "pyarrow, us": pq.read_table("x.parquet", coerce_int96_timestamp_unit="us")["x"][0].as_py().year,
}
print(years)
assert years == {"pyarrow": 1830, "fastparquet": 1830, "polars": 3000, "duckdb": 3000, "pyarrow, us": 3000}
EOF
