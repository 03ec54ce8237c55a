#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: `np.save(path, table[["a"]])` writes the field `a` only: 4 bytes for each row.
# Seen: a selection of several fields is a view with gaps since numpy 1.16, and the file contains
# the gaps: here 1004 bytes for each row. `rfn.repack_fields`, or `table["a"]` for a single one,
# writes 4.
# Versions: numpy 2.4.6
# Matters: files are as large as the whole table, and so is what a reader loads.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np, os
from numpy.lib import recfunctions as rfn

table = np.zeros(100, [("a", "f4"), ("text", "S1000")])
np.save("x.npy", table[["a"]])
print("bytes:", os.path.getsize("x.npy"), "fields:", np.load("x.npy").dtype.names)
assert np.load("x.npy").dtype.names == ("a",)
assert os.path.getsize("x.npy") > 100_000
np.save("x.npy", rfn.repack_fields(table[["a"]]))
assert os.path.getsize("x.npy") < 1_000
EOF
