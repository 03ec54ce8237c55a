#!/usr/bin/env bash
# Subject: Tables
# Guess: a key that first occurs in a later line of a JSON-lines file is a column, with null above
# it.
# Seen: Polars knows the keys of the first 100 lines, DuckDB of the first 20,480, and both drop
# later ones without a warning. pandas and pyarrow return the column. `infer_schema_length=None`
# and `sample_size = -1` read them.
# Versions: polars 2.1.0, duckdb 2.0.1, pandas 3.1.1, pyarrow 26.0.1
# Matters: in a log with a line for each step, the validation loss first comes after an epoch: it
# is not there.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  polars==2.1.0 duckdb==2.0.1 pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import duckdb, pandas as pd, polars as pl, pyarrow as pa, pyarrow.json

def write(lines):
    with open("x.jsonl", "w") as file:
        file.writelines(f'{{"step": {step}}}\n' for step in range(lines))
        file.write('{"step": -1, "val_loss": 0.5}\n')

write(150)
assert pl.read_ndjson("x.jsonl").columns == ["step"]
assert pl.read_ndjson("x.jsonl", infer_schema_length=None).columns == ["step", "val_loss"]
print("polars, line 151: dropped")
write(30_000)
assert duckdb.sql("from 'x.jsonl'").columns == ["step"]
assert duckdb.sql("from read_json('x.jsonl', sample_size = -1)").columns == ["step", "val_loss"]
print("duckdb, line 30,001: dropped")
assert list(pd.read_json("x.jsonl", lines=True).columns) == ["step", "val_loss"]
assert pa.json.read_json("x.jsonl").column_names == ["step", "val_loss"]
print("pandas and pyarrow: read")
EOF
