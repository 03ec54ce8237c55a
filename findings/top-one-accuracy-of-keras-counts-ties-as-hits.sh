#!/usr/bin/env bash
# Subject: Metrics
# Guess: TopKCategoricalAccuracy(k=1) is CategoricalAccuracy.
# Seen: a class that ties with the best one counts as found, so a model that gives each class the
# same number has a top-1 accuracy of 1 and an accuracy of 1/3. scikit-learn's
# `top_k_accuracy_score` gives 1/3.
# Versions: keras 3.15.1, jax 0.10.2, scikit-learn 1.9.1
# Matters: a collapsed model (constant outputs, or saturated half-precision scores) looks perfect.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 scikit-learn==1.9.1
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras
from sklearn.metrics import top_k_accuracy_score

truth, equal = [[0, 0, 1.0], [0, 1.0, 0], [1.0, 0, 0]], [[0.3, 0.3, 0.3]] * 3
seen = {}
for name, metric in {"top-1": keras.metrics.TopKCategoricalAccuracy(1), "accuracy": keras.metrics.CategoricalAccuracy()}.items():
    metric.update_state(truth, equal)
    seen[name] = round(float(metric.result()), 3)
seen["scikit-learn"] = round(top_k_accuracy_score([2, 1, 0], equal, k=1), 3)
print(seen)
assert seen == {"top-1": 1.0, "accuracy": 0.333, "scikit-learn": 0.333}
EOF
