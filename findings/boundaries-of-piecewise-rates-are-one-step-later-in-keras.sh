#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: a rate that changes at boundary 3 is the new one in step 3, counted from 0, in each
# library.
# Seen: Keras' PiecewiseConstantDecay uses the old rate for step 3 as well, optax's
# piecewise_constant_schedule the new one. The values mean different things, too: rates in Keras,
# factors in optax.
# Versions: keras 3.15.1, optax 0.2.8, jax 0.10.2
# Matters: milestones that are copied shift every drop by one step, or one epoch.
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

in_keras = keras.optimizers.schedules.PiecewiseConstantDecay([3, 6], [1.0, 0.5, 0.1])
in_optax = optax.piecewise_constant_schedule(1.0, {3: 0.5, 6: 0.2})
rates = [[round(float(schedule(step)), 4) for step in range(8)] for schedule in (in_keras, in_optax)]
print("keras", rates[0], "optax", rates[1])
assert rates == [[1, 1, 1, 1, 0.5, 0.5, 0.5, 0.1], [1, 1, 1, 0.5, 0.5, 0.5, 0.1, 0.1]]
EOF
