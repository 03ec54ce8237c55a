#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: what `safetensors.numpy.save_file` accepts, `load_file` reads: bfloat16 of ml_dtypes
# works in both directions, so float8 does.
# Seen: float8 arrays are saved, with the right type in the header, and reading them into numpy
# raises an AttributeError about numpy, also for `get_slice`.
# Versions: safetensors 0.8.0, ml_dtypes 0.6.0, numpy 2.4.6
# Matters: a conversion script succeeds, and its result cannot be checked by the same package.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  safetensors==0.8.0 numpy==2.4.6 ml_dtypes==0.6.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import ml_dtypes, numpy as np
from safetensors.numpy import load_file, save_file

save_file({"x": np.arange(4).astype(ml_dtypes.bfloat16)}, "x.safetensors")
assert load_file("x.safetensors")["x"].dtype == ml_dtypes.bfloat16
for kind in ["float8_e4m3fn", "float8_e5m2"]:
    save_file({"x": np.arange(4).astype(getattr(ml_dtypes, kind))}, "x.safetensors")
    assert b'"dtype":"F8_' in open("x.safetensors", "rb").read()
    try:
        load_file("x.safetensors")
        raise SystemExit("float8 is read")
    except AttributeError as error:
        print(kind, "saved; reading:", error)
EOF
