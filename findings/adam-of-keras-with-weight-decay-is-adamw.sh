#!/usr/bin/env bash
# Subject: Optimizers and schedules
# Guess: `Adam(weight_decay=0.1)` adds the decay to the gradient, as PyTorch's Adam does, since
# there is AdamW for the other kind.
# Seen: every Keras optimizer applies `weight_decay` to the weights, times the learning rate: Adam
# with it is AdamW to the last bit, and SGD with momentum does not accumulate it.
# Versions: keras 3.15.1, optax 0.2.8, jax 0.10.2
# Matters: a port of `torch.optim.Adam(weight_decay=…)` by the same name trains with another
# method.
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

def weights(optimizer):
    variable = keras.Variable(np.array([1.0, 2.0, -1.0]), dtype="float64")
    optimizer.build([variable])
    for gradient in GRADIENTS:
        optimizer.apply([jnp.array(gradient)], [variable])
    return np.asarray(variable.value)

adam, adamw = (weights(kind(0.1, weight_decay=0.1)) for kind in (keras.optimizers.Adam, keras.optimizers.AdamW))
print("Adam", adam, "AdamW", adamw)
assert np.array_equal(adam, adamw)

def added_to_the_gradient(optimizer):
    weights = jnp.array([1.0, 2.0, -1.0])
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optimizer)
    state = optimizer.init(weights)
    for gradient in GRADIENTS:
        updates, state = optimizer.update(jnp.array(gradient), state, weights)
        weights = optax.apply_updates(weights, updates)
    return np.asarray(weights)

difference = np.abs(adam - added_to_the_gradient(optax.adam(0.1))).max()
sgd = weights(keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1))
difference_of_sgd = np.abs(sgd - added_to_the_gradient(optax.sgd(0.1, momentum=0.9))).max()
print("differences to a decay in the gradient:", difference, difference_of_sgd)
assert difference > 0.1 and difference_of_sgd > 0.01
EOF
