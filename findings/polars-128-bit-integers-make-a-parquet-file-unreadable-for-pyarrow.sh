#!/usr/bin/env bash
# Subject: Tables
# Guess: Polars writes a column type that Parquet lacks as a decimal, or refuses to write it.
# Seen: it writes 16 raw bytes for each number and the type in the stored Arrow schema. pyarrow
# then refuses the whole file, with all its other columns; DuckDB returns bytes. Polars makes such
# columns by itself when it reads integers above 2^63 from CSV or JSON.
# Versions: polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1
# Matters: one large hash in a CSV file makes the converted data set unreadable elsewhere.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, polars as pl, pyarrow as pa, pyarrow.parquet as pq

open("x.csv", "w").write(f"hash,n\n{2**63 + 1},1\n3,2\n")
frame = pl.read_csv("x.csv")
print("polars", frame.schema)
assert frame.schema["hash"] == pl.Int128
frame.write_parquet("x.parquet")
assert pl.read_parquet("x.parquet").equals(frame)
try:
    pq.read_table("x.parquet", columns=["n"])
    raise SystemExit("pyarrow reads the file")
except pa.ArrowNotImplementedError as error:
    print("pyarrow, another column:", error)
kinds = [str(kind) for kind in duckdb.sql("from 'x.parquet'").types]
print("duckdb", kinds)
assert kinds == ["BLOB", "BIGINT"]
EOF
