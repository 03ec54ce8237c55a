#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: `EarlyStopping(restore_best_weights=True)` of Keras goes back to the best weights when it
# stops a run; a run that reaches its last epoch ends with the weights of this epoch.
# Seen: the weights of the best epoch are restored at the end of every fit, also if the patience is
# longer than the run and nothing was stopped.
# Versions: keras 3.15.1, jax 0.10.2
# Matters: a second `fit` that continues, and a comparison with the last line of the log, begin with
# weights of an earlier epoch, while the state of the optimizer is that of the last one.
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

class Note(keras.callbacks.Callback):
    weights = []
    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(float(np.asarray(self.model.get_weights()[0]).item()))

model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
# The rate is so large that the loss grows from the second epoch on.
model.compile(loss="mse", optimizer=keras.optimizers.SGD(1.2))
stopping = keras.callbacks.EarlyStopping(monitor="loss", mode="min", patience=100, restore_best_weights=True)
x = np.ones((1, 1), dtype="float32")
model.fit(x, x, epochs=4, verbose=0, callbacks=[Note(), stopping])
end = float(np.asarray(model.get_weights()[0]).item())
print("after each epoch", Note.weights, "at the end", end, "stopped in epoch", stopping.stopped_epoch)
assert stopping.stopped_epoch == 0 and end == Note.weights[0] != Note.weights[3]
EOF
