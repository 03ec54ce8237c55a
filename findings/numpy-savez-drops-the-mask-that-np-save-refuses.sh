#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: `np.save` and `np.savez` treat a masked array alike: both store it with its mask, or both
# refuse it.
# Seen: `np.save` raises NotImplementedError; `np.savez` stores the hidden values as ordinary
# ones, and the mask is gone. safetensors does as `np.savez`.
# Versions: numpy 2.4.6, safetensors 0.8.0
# Matters: values that were masked because they are invalid take part in training.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  numpy==2.4.6 safetensors==0.8.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np
from safetensors.numpy import load_file, save_file

masked = np.ma.array([1.0, 999.0], mask=[False, True])
assert masked.sum() == 1.0
try:
    np.save("x.npy", masked)
    raise SystemExit("np.save stores it")
except NotImplementedError as error:
    print("np.save:", error)
np.savez("x.npz", x=masked)
save_file({"x": masked}, "x.safetensors")
for read in [np.load("x.npz")["x"], load_file("x.safetensors")["x"]]:
    print("read", repr(read))
    assert type(read) is np.ndarray and read.sum() == 1000.0
EOF
