#!/usr/bin/env bash
# Subject: Metrics
# Guess: `log_loss(y, p, labels=["pos", "neg"])` says that the first column of `p` belongs to
# "pos".
# Seen: `labels` only says which classes exist: the columns always are in the sorted order of the
# labels. A good model gets a loss of 1.96 instead of 0.16, and the same number with the labels in
# the other order.
# Versions: scikit-learn 1.9.1
# Matters: a loss that looks like a bad model is reported for swapped columns.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  scikit-learn==1.9.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
from sklearn.metrics import log_loss

truth, probabilities = ["pos", "neg"], [[0.9, 0.1], [0.2, 0.8]]
losses = [log_loss(truth, probabilities, labels=labels) for labels in (["pos", "neg"], ["neg", "pos"])]
swapped = log_loss(truth, [row[::-1] for row in probabilities], labels=["pos", "neg"])
print("either order:", losses, "columns swapped:", swapped)
assert losses[0] == losses[1] and abs(losses[0] - 1.956) < 1e-3 and abs(swapped - 0.164) < 1e-3
EOF
