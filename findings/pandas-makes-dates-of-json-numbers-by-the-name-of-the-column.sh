#!/usr/bin/env bash
# Subject: Tables
# Guess: a number in JSON lines is a number in `pandas.read_json`.
# Seen: a column whose name ends with `_time` or `_at`, or begins with `date`, `modified` or
# `timestamp`, becomes a column of time stamps if its numbers could be seconds after 1971:
# `wall_time` does, `train_time` with few seconds does not. `convert_dates=False` keeps numbers.
# Versions: pandas 3.1.1
# Matters: `wall_time` minus a number, or a mean over columns, fails or is wrong; a counter named
# `tokens_at` turns into dates once it is large.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pandas==3.1.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import pandas as pd

open("x.jsonl", "w").writelines(
    f'{{"wall_time": {1.79e9 + step}, "train_time": {3.5 * step}, "tokens_at": {10**9 * step}, "tokens": {10**9 * step}}}\n'
    for step in (1, 2))
kinds = {name: kind.kind for name, kind in pd.read_json("x.jsonl", lines=True).dtypes.items()}
print(kinds)
assert kinds == {"wall_time": "M", "train_time": "f", "tokens_at": "M", "tokens": "i"}
kinds = {kind.kind for kind in pd.read_json("x.jsonl", lines=True, convert_dates=False).dtypes}
print("convert_dates=False:", kinds)
assert kinds == {"f", "i"}
EOF
