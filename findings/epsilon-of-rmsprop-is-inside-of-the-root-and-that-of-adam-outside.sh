#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: within one library epsilon is in the same position for related optimizers, so a value
# that is good for Adam fits RMSprop.
# Seen: Keras and optax add it to the mean square, inside of the root, for RMSprop, and outside
# for Adam. Inside, 1e-8 acts like 1e-4. With epsilon 1e-4 and a gradient of 0.01 the first step
# is 0.095 instead of the 0.307 of optax's `eps_in_sqrt=False`, which is PyTorch's formula.
# Versions: keras 3.15.1, optax 0.2.8, jax 0.10.2
# Matters: small gradients take much smaller steps than in a program ported from PyTorch.
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

inside = with_optax(optax.rmsprop(0.1, decay=0.9, eps=1e-4), 1)
outside = with_optax(optax.rmsprop(0.1, decay=0.9, eps=1e-4, eps_in_sqrt=False), 1)
in_keras = with_keras(keras.optimizers.RMSprop(0.1, rho=0.9, epsilon=1e-4), 1)
print("optax", inside, "outside of the root", outside, "keras", in_keras)
assert np.allclose(in_keras, inside, rtol=1e-6)
gradient = GRADIENTS[0]
assert np.allclose(inside, -0.1 * gradient / np.sqrt(0.1 * gradient**2 + 1e-4), rtol=1e-6)
assert np.allclose(outside, -0.1 * gradient / (np.sqrt(0.1 * gradient**2) + 1e-4), rtol=1e-6)
assert outside[2] / inside[2] > 3
EOF
