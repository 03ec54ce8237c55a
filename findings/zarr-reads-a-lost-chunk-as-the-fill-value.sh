#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: if the file of a chunk is missing, reading the array raises an error, since other chunks
# are there.
# Seen: the chunk reads as the fill value: a missing file is how a chunk of fill values is stored.
# An array of zeros has no chunk files at all, so a lost one cannot be told from zeros.
# Versions: zarr 3.1.6
# Matters: an incomplete copy of a data set trains on zeros.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  zarr==3.1.6 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import os, zarr

array = zarr.create_array("x.zarr", shape=(4,), chunks=(2,), dtype="f4")
array[:] = 1
os.remove("x.zarr/c/0")
print("one chunk removed:", zarr.open_array("x.zarr")[:].tolist())
assert zarr.open_array("x.zarr")[:].tolist() == [0, 0, 1, 1]
zeros = zarr.create_array("zeros.zarr", shape=(4,), chunks=(2,), dtype="f4")
zeros[:] = 0
print("files of zeros:", os.listdir("zeros.zarr"))
assert os.listdir("zeros.zarr") == ["zarr.json"]
EOF
