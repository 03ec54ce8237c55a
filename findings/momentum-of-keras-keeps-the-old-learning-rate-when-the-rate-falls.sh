#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: SGD with momentum goes on with the new rate as soon as the rate falls: the velocity is a
# mean of gradients.
# Seen: the velocity of Keras holds gradients times the rate of their time, so after the rate fell
# from 0.1 to 0.01 the weights coast on: the next two steps together are 11 times those of optax
# (and PyTorch), which multiply the whole velocity by the current rate. With a constant rate the
# two are equal.
# Versions: keras 3.15.1, optax 0.2.8, jax 0.10.2
# Matters: schedules with drops, and warm restarts, give other curves with the same numbers.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import os
os.environ["KERAS_BACKEND"] = "jax"
import jax, jax.numpy as jnp, keras, numpy as np, optax
jax.config.update("jax_enable_x64", True)

GRADIENTS = [np.array([0.5, -2.0, 0.01]), np.array([0.1, 1.0, -0.02]), np.array([-0.3, 0.5, 0.03])]

def with_keras(optimizer, steps=3):
    variable = keras.Variable(np.zeros(3), dtype="float64")
    optimizer.build([variable])
    for gradient in GRADIENTS[:steps]:
        optimizer.apply([jnp.array(gradient)], [variable])
    return np.asarray(variable.value)

def with_optax(optimizer, steps=3):
    weights = jnp.zeros(3)
    state = optimizer.init(weights)
    for gradient in GRADIENTS[:steps]:
        updates, state = optimizer.update(jnp.array(gradient), state, weights)
        weights = optax.apply_updates(weights, updates)
    return np.asarray(weights)

rate = lambda step: jnp.where(step < 1, 0.1, 0.01)

class Drop(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return rate(step)
    def get_config(self):
        return {}

constant = with_keras(keras.optimizers.SGD(0.1, momentum=0.9)), with_optax(optax.sgd(0.1, momentum=0.9))
assert np.allclose(*constant, atol=1e-7)
first = with_keras(keras.optimizers.SGD(Drop(), momentum=0.9), 1)
later = with_keras(keras.optimizers.SGD(Drop(), momentum=0.9)) - first, with_optax(optax.sgd(rate, momentum=0.9)) - first
print("steps after the drop, keras", later[0], "optax", later[1], "ratio", later[0] / later[1])
assert later[0][0] / later[1][0] > 10
EOF
