#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: Nadam with the same settings is the same up to rounding.
# Seen: the first step is 0.106 in Keras, which follows the schedule of the momentum in Dozat's
# paper, and 0.147 in optax, which uses the constant momentum, for a learning rate of 0.1. After
# three steps they are twice as far apart.
# Versions: keras 3.15.1, optax 0.2.8, jax 0.10.2
# Matters: a learning rate tuned in one library is 40 % off in the other.
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

first = with_keras(keras.optimizers.Nadam(0.1, epsilon=1e-8), 1), with_optax(optax.nadam(0.1, eps=1e-8), 1)
third = with_keras(keras.optimizers.Nadam(0.1, epsilon=1e-8)), with_optax(optax.nadam(0.1, eps=1e-8))
print("first step", *first, "three steps", *third)
assert abs(-first[0][0] - 0.1063) < 1e-3 and abs(-first[1][0] - 0.1474) < 1e-3
assert abs(third[1][0] / third[0][0]) > 2
EOF
