#!/usr/bin/env bash
# Subject: Tables
# Guess: JSON says which values are texts, so `"007"` stays one.
# Seen: `read_json` converts a column of texts that look like numbers: "007" becomes 7. Polars,
# pyarrow and DuckDB keep the texts, and so does pandas with `dtype=False`.
# Versions: pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1
# Matters: identifiers, zip codes and answers lose their zeros, depending on the other rows of the
# column.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, pandas as pd, polars as pl, pyarrow as pa, pyarrow.json

open("x.jsonl", "w").write('{"id": "007"}\n{"id": "010"}\n')
seen = {
    "pandas": pd.read_json("x.jsonl", lines=True)["id"].tolist(),
    "pandas, dtype=False": pd.read_json("x.jsonl", lines=True, dtype=False)["id"].tolist(),
    "polars": pl.read_ndjson("x.jsonl")["id"].to_list(),
    "pyarrow": pa.json.read_json("x.jsonl")["id"].to_pylist(),
    "duckdb": [row[0] for row in duckdb.sql("from 'x.jsonl'").fetchall()],
}
print(seen)
assert seen.pop("pandas") == [7, 10]
assert all(read == ["007", "010"] for read in seen.values())
open("x.jsonl", "a").write('{"id": "x1"}\n')
mixed = pd.read_json("x.jsonl", lines=True)["id"].tolist()
print("pandas, with another row:", mixed)
assert mixed == ["007", "010", "x1"]
EOF
