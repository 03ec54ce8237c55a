#!/usr/bin/env bash
# Subject: Tables
# Guess: `sum` of an integer column is an integer in the Parquet file, too, or a decimal where 64
# bits may not suffice.
# Seen: the sum is a HUGEINT of 128 bits, for which Parquet has no type, and COPY writes it as a
# double: 2^53 + 1 comes back as 2^53. `sum(i)::BIGINT` is exact.
# Versions: duckdb 2.0.1, pyarrow 26.0.1
# Matters: summed token counts, identifiers and hashes lose digits on their way through a file,
# without a word.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  duckdb==2.0.1 pyarrow==26.0.1
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, pyarrow.parquet as pq

one = "(values (9007199254740993::bigint)) t(i)"
assert duckdb.sql(f"select sum(i) from {one}").fetchall() == [(2**53 + 1,)]
duckdb.sql(f"copy (select sum(i) as s, sum(i)::bigint as b from {one}) to 'x.parquet'")
table = pq.read_table("x.parquet")
print(table.schema.types, table.to_pylist())
assert [str(kind) for kind in table.schema.types] == ["double", "int64"]
assert table.to_pylist() == [{"s": float(2**53), "b": 2**53 + 1}]
EOF
