#!/usr/bin/env bash
# Subject: Metrics
# Guess: `class_weight` of Keras' fit makes the loss a weighted mean, as `weight=` of PyTorch's
# CrossEntropyLoss does: the sum of weighted losses divided by the sum of the weights.
# Seen: the sum is divided by the number of rows. With weights 1 and 3 for two rows of each class
# the loss is twice the weighted mean, so it and the gradients grow with the weights.
# Versions: keras 3.15.1, jax 0.10.2
# Matters: weights that are ported with the same learning rate train with steps of another size, and
# two runs with other weights have losses that cannot be compared.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np

logits = np.array([[2.0, 0.0], [0.5, 0.0], [1.0, 0.0], [0.0, 1.5]], dtype="float32")
labels = np.array([0, 0, 1, 1])
weights = {0: 1.0, 1: 3.0}
each = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), labels]
of_rows = np.array([weights[label] for label in labels])

model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Identity()])
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer="sgd")
seen = model.fit(logits, labels, class_weight=weights, batch_size=4, verbose=0).history["loss"][0]
by_rows, by_weights = (each * of_rows).sum() / 4, (each * of_rows).sum() / of_rows.sum()
print("keras", seen, "by rows", by_rows, "weighted mean", by_weights)
assert np.isclose(seen, by_rows, rtol=1e-5) and np.isclose(by_rows, 2 * by_weights)
EOF
