#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: AMSGrad is Adam with the largest second moment so far, so the libraries agree.
# Seen: Keras (as PyTorch) keeps the largest raw moment and corrects it afterwards; optax corrects
# first and keeps the largest corrected one. The first corrected moment is the square of the first
# gradient, so a large first gradient holds all later steps back: 0.172 instead of 0.201 after
# three steps.
# Versions: keras 3.15.1, optax 0.2.8, jax 0.10.2
# Matters: runs that begin with large gradients train more slowly in one of the two.
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

first = with_keras(keras.optimizers.Adam(0.1, amsgrad=True, epsilon=1e-8), 1), with_optax(optax.amsgrad(0.1), 1)
third = with_keras(keras.optimizers.Adam(0.1, amsgrad=True, epsilon=1e-8)), with_optax(optax.amsgrad(0.1))
print("first step", *first, "three steps", *third)
assert np.allclose(*first, atol=1e-5)
assert abs(-third[0][0] - 0.2014) < 1e-3 and abs(-third[1][0] - 0.1723) < 1e-3
EOF
