#!/usr/bin/env bash
# Subject: Tables
# Guess: when a later file or row has fractions where the first ones had integers, the reader
# widens the column to a float or reports an error.
# Seen: DuckDB takes the type from the first Parquet file, or from the first 20,480 rows of JSON
# lines, and rounds later fractions to it: 2.7 becomes 3, and a loss of 0.4 becomes 0. fastparquet
# cuts 2.7 to 2. `union_by_name = true` and `sample_size = -1` widen the type in DuckDB. For the
# same files pyarrow and Polars report an error.
# Versions: duckdb 2.0.1, fastparquet 2026.9.0, pyarrow 26.0.1, polars 2.1.0
# Matters: a metric that is a whole number at first (0, 1) loses its fractions afterwards.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  duckdb==2.0.1 fastparquet==2026.9.0 pyarrow==26.0.1 polars==2.1.0 pandas==3.1.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, fastparquet, os, polars as pl, pyarrow as pa, pyarrow.parquet as pq

os.mkdir("parts")
pq.write_table(pa.table({"x": [1, 2]}), "parts/a.parquet")
pq.write_table(pa.table({"x": [1.2, 2.7]}), "parts/b.parquet")
files = "'parts/*.parquet'"
rounded = [row[0] for row in duckdb.sql(f"from read_parquet({files})").fetchall()]
widened = [row[0] for row in duckdb.sql(f"from read_parquet({files}, union_by_name = true)").fetchall()]
cut = fastparquet.ParquetFile(["parts/a.parquet", "parts/b.parquet"]).to_pandas()["x"].tolist()
print("duckdb", rounded, "by name", widened, "fastparquet", cut)
assert rounded == [1, 2, 1, 3] and widened == [1.0, 2.0, 1.2, 2.7] and cut == [1, 2, 1, 2]
for read, error in [(lambda: pq.read_table("parts"), pa.ArrowInvalid),
                    (lambda: pl.read_parquet("parts/*.parquet"), pl.exceptions.SchemaError)]:
    try:
        read()
        raise SystemExit("no error")
    except error as message:
        print("another reader:", str(message)[:60])

with open("x.jsonl", "w") as file:
    file.writelines('{"loss": 1}\n' for _ in range(30_000))
    file.write('{"loss": 0.4}\n')
last = "select loss from read_json('x.jsonl'{}) order by loss limit 1"
rounded = duckdb.sql(last.format("")).fetchall()[0][0]
exact = duckdb.sql(last.format(", sample_size = -1")).fetchall()[0][0]
print("JSON", rounded, "sample of all", exact)
assert rounded == 0 and exact == 0.4
EOF
