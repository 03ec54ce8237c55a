#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: Adam with the same epsilon makes the same steps in Keras and optax; the number is only
# there against a division by zero.
# Seen: Keras adds epsilon to the root before the bias correction, which is the "epsilon hat" of
# the paper, optax (as PyTorch) after it. With epsilon 0.1 the first step is 6 times smaller in
# Keras for a gradient of 0.5. In step t, Keras' epsilon counts as epsilon / sqrt(1 - beta2^t): 32
# times as much in the first step.
# Versions: keras 3.15.1, optax 0.2.8, jax 0.10.2
# Matters: recipes with a large epsilon (0.1 for Inception, 1e-3 for reinforcement learning) do
# not carry over.
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

seen = with_keras(keras.optimizers.Adam(0.1, epsilon=0.1), 1), with_optax(optax.adam(0.1, eps=0.1), 1)
print("first step, keras", seen[0], "optax", seen[1])
assert abs(seen[1][0] / seen[0][0] - 6.1) < 0.1
as_optax = with_keras(keras.optimizers.Adam(0.1, epsilon=0.1 * np.sqrt(1 - 0.999)), 1)
print("keras with epsilon * sqrt(1 - 0.999):", as_optax)
assert np.allclose(as_optax, seen[1], rtol=1e-4)
small = with_keras(keras.optimizers.Adam(0.1, epsilon=1e-12)), with_optax(optax.adam(0.1, eps=1e-12))
assert np.allclose(*small, atol=1e-6)
EOF
