#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: in an .npz file with the arrays `x` and `x.npy`, each name returns its own array.
# Seen: both names return `x`, in `items()` too. The array saved as `x.npy` is in the file and
# cannot be reached by its name; `x.npy.npy` returns it.
# Versions: numpy 2.4.6
# Matters: arrays named after files (`a`, `a.npy`) are mixed up without an error.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np

np.savez("x.npz", **{"x": np.array(1), "x.npy": np.array(2)})
file = np.load("x.npz")
print(file.files, {name: int(array) for name, array in file.items()})
assert file.files == ["x", "x.npy"]
assert file["x"] == 1 and file["x.npy"] == 1 and file["x.npy.npy"] == 2
EOF
