#!/usr/bin/env bash
# Subject: Metrics
# Guess: scikit-learn's `log_loss` of a prediction with probability 0 for the truth is clipped at
# a fixed small number.
# Seen: it is clipped at the epsilon of the array's type, so the same mistake costs 36.0 in
# double, 15.9 in single and 6.9 in half precision.
# Versions: scikit-learn 1.9.1
# Matters: storing predictions in half precision makes an overconfident model look five times
# better.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  scikit-learn==1.9.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np
from sklearn.metrics import log_loss

losses = {kind: float(log_loss([1], np.array([[1, 0]], kind), labels=[0, 1])) for kind in ["f8", "f4", "f2"]}
print(losses)
assert abs(losses["f8"] - 36.04) < 0.01 and abs(losses["f4"] - 15.94) < 0.01 and abs(losses["f2"] - 6.93) < 0.02
EOF
