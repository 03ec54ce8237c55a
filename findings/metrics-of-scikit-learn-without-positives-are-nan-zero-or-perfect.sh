#!/usr/bin/env bash
# Subject: Metrics
# Guess: metrics that are undefined because a class does not occur raise an error, or are all NaN.
# Seen: `roc_auc_score` is NaN with a warning (older versions raised), `average_precision_score`
# 0, `f1_score` 0, `balanced_accuracy_score` ignores the absent class, `matthews_corrcoef` of a
# perfect prediction is 0, `cohen_kappa_score` NaN and `r2_score` of a perfect constant 1.
# Versions: scikit-learn 1.9.1
# Matters: an average over folds or classes becomes NaN by one metric and too low by another, for
# the same fold.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  scikit-learn==1.9.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import math, warnings
from sklearn import metrics

warnings.simplefilter("ignore")
seen = {
    "roc_auc": metrics.roc_auc_score([0, 0], [0.2, 0.3]),
    "average_precision": metrics.average_precision_score([0, 0], [0.2, 0.3]),
    "f1": metrics.f1_score([0, 0], [0, 0]),
    "balanced_accuracy": metrics.balanced_accuracy_score([0, 0], [0, 1]),
    "matthews": metrics.matthews_corrcoef([1, 1], [1, 1]),
    "kappa": metrics.cohen_kappa_score([1, 1], [1, 1]),
    "r2, exact": metrics.r2_score([1, 1], [1, 1]),
    "r2, not exact": metrics.r2_score([1, 1], [1, 2]),
}
print(seen)
assert math.isnan(seen.pop("roc_auc")) and math.isnan(seen.pop("kappa"))
assert list(seen.values()) == [0.0, 0.0, 0.5, 0.0, 1.0, 0.0]
EOF
