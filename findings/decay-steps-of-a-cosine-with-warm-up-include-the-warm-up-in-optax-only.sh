#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: `decay_steps=8` with `warmup_steps=4` means the same for Keras' CosineDecay and optax's
# warmup_cosine_decay_schedule.
# Seen: the whole schedule lasts 8 steps in optax, and 12 in Keras, where the decay begins to
# count after the warm-up. In step 8 the rate is 0 in one and 0.5 in the other.
# Versions: keras 3.15.1, optax 0.2.8, jax 0.10.2
# Matters: a run ends with a rate that is far from zero, or trains its last third with none.
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

in_keras = keras.optimizers.schedules.CosineDecay(0.0, 8, warmup_target=1.0, warmup_steps=4)
in_optax = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=4, decay_steps=8)
rates = {step: (round(float(in_keras(step)), 3), round(float(in_optax(step)), 3)) for step in (2, 4, 6, 8, 12)}
print("step: keras, optax", rates)
assert rates == {2: (0.5, 0.5), 4: (1.0, 1.0), 6: (0.854, 0.5), 8: (0.5, 0.0), 12: (0.0, 0.0)}
EOF
