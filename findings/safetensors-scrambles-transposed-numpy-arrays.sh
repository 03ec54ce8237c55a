#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: `safetensors.numpy.save_file` stores a transposed or Fortran-ordered array by its values,
# as `np.save` does, or refuses it, as the torch version does.
# Seen: it stores the memory as it lies and the shape of the view: the values come back in another
# order, without a warning. `np.ascontiguousarray` helps.
# Versions: safetensors 0.8.0, numpy 2.4.6
# Matters: weights converted from a layout that stores matrices the other way round (`w.T`) are
# wrong, and have the right names, shapes and types.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  safetensors==0.8.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np
from safetensors.numpy import load_file, save_file

matrix = np.arange(6.0, dtype=np.float32).reshape(2, 3)
for name, array in {"transposed": matrix.T, "Fortran order": np.asfortranarray(matrix)}.items():
    save_file({"w": array}, "w.safetensors")
    read = load_file("w.safetensors")["w"]
    print(name, array.tolist(), "read", read.tolist())
    assert read.shape == array.shape and not np.array_equal(read, array)
    assert read.ravel().tolist() == array.ravel(order="K").tolist()
    save_file({"w": np.ascontiguousarray(array)}, "w.safetensors")
    assert np.array_equal(load_file("w.safetensors")["w"], array)
EOF
