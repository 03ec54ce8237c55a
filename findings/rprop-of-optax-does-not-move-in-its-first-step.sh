#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: Rprop moves each weight by the learning rate in the first step, since that is the initial
# size of its steps.
# Seen: the first update of `optax.rprop` is zero: a weight moves only if two gradients in a row
# have the same sign. Of three weights here only the first one moves in the second step, and none
# in the third.
# Versions: optax 0.2.8, jax 0.10.2
# Matters: a comparison step by step with another Rprop is off by one step from the beginning.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import jax, jax.numpy as jnp, numpy as np, optax
jax.config.update("jax_enable_x64", True)

GRADIENTS = [np.array([0.5, -2.0, 0.01]), np.array([0.1, 1.0, -0.02]), np.array([-0.3, 0.5, 0.03])]

def with_optax(optimizer, steps=3):
    weights = jnp.zeros(3)
    state = optimizer.init(weights)
    for gradient in GRADIENTS[:steps]:
        updates, state = optimizer.update(jnp.array(gradient), state, weights)
        weights = optax.apply_updates(weights, updates)
    return np.asarray(weights)

positions = [with_optax(optax.rprop(0.1), steps).tolist() for steps in (1, 2, 3)]
print(positions)
assert np.allclose(positions, [[0, 0, 0], [-0.1, 0, 0], [-0.1, 0, 0]])
EOF
