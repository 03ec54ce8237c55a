#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: a run of Keras that `BackupAndRestore` resumes draws new dropout masks, those of the run
# that was not interrupted: the state of a layer's generator is a variable of the model, and all
# variables are saved.
# Seen: files of weights, also that of `BackupAndRestore`, do not have the states of the generators
# of layers. The resumed run draws the masks of its first steps once more.
# Versions: keras 3.15.1, jax 0.10.2
# Matters: a run that is often interrupted trains with the same few masks again and again, and is
# never equal to the one that was not.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 h5py==3.16.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import os, tempfile
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np

x = np.ones((1, 8), dtype="float32")
masks = []

class Note(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        # A copy of the generator draws the mask that the layer is about to draw.
        state = np.array(dropout.seed_generator.state)
        masks.append((epoch, keras.ops.convert_to_numpy(dropout(x, training=True)).tolist()))
        dropout.seed_generator.state.assign(state)

class Leave(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt

def fit(folder, *callbacks):
    global dropout
    dropout = keras.layers.Dropout(0.5, seed=5)
    model = keras.Sequential([keras.Input((8,)), dropout, keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer="sgd")
    backup = keras.callbacks.BackupAndRestore(folder)
    try:
        model.fit(x, x[:, :1], epochs=5, verbose=0, callbacks=[backup, Note(), *callbacks])
    except KeyboardInterrupt:
        pass
    of_run = masks.copy()
    masks.clear()
    return of_run

whole = fit(tempfile.mkdtemp())
folder = tempfile.mkdtemp()
first = fit(folder, Leave())
resumed = fit(folder)
print("epochs of the resumed run", [epoch for epoch, _ in resumed])
assert [epoch for epoch, _ in resumed] == [3, 4] and first == whole[:3]
same_as_whole = [mask for _, mask in resumed] == [mask for _, mask in whole[3:]]
same_as_first = [mask for _, mask in resumed] == [mask for _, mask in whole[:2]]
print("masks of the whole run:", same_as_whole, "masks of its first epochs:", same_as_first)
assert same_as_first and not same_as_whole
EOF
