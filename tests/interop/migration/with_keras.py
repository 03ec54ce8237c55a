"""The rows of the page about Keras, with Keras on torch."""

import contextlib
import csv
import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch

from common import *

keras.config.set_floatx("float64")
keras.config.set_epsilon(1e-7)
WEIGHTS = ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]


def network(outputs=1):
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(outputs)])
    theirs = Net(outputs=outputs)
    named = dict(theirs.named_parameters())
    order = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    net.set_weights([named[name].detach().numpy().T for name in order])
    return net


def flat_of(net):
    kernel1, bias1, kernel2, bias2 = net.get_weights()
    return [value for array in (bias1, kernel1.T, bias2, kernel2.T) for value in array.flatten().tolist()]


class Record(keras.callbacks.Callback):
    """Records each update. It precedes other callbacks, and sets the scripted metric in the logs."""

    def on_train_begin(self, logs=None):
        self.steps = int(self.model.optimizer.iterations)
        self.first = self.steps

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) > self.steps:
            self.steps = int(self.model.optimizer.iterations)
            seen["weights"] += flat_of(self.model)

    def on_epoch_end(self, epoch, logs=None):
        if "val_loss" in logs:
            seen["valid"].append(logs["val_loss"])
        logs["scripted"] = SCRIPT[epoch]

    def on_train_end(self, logs=None):
        seen["steps"] = [self.steps - self.first]


def loss(y, pred):
    each = keras.ops.mean(keras.ops.square(pred - y), axis=-1)
    if torch.is_grad_enabled():
        seen["losses"].append(float(each.mean()))
    return each


def fit(*callbacks, net=None, optimizer=None, of=loss, data=None, valid=False, batch=4, epochs=2, **settings):
    net = net or network()
    if not net.compiled:
        net.compile(optimizer=optimizer or keras.optimizers.SGD(0.1), loss=of)
    x, y = data or train_rows()
    validated = dict(validation_data=tuple(part.numpy() for part in valid_rows()), validation_batch_size=4) if valid else {}
    settings = {**validated, "batch_size": batch, **settings}
    callbacks = [Record(), *callbacks]
    history = net.fit(x.numpy(), y.numpy(), epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks, **settings)
    return net, history.history


@case("epochs=n")
def _():
    fit(epochs=3)


@case("validation_split=0.2")
def _():
    fit(validation_split=0.2)


def entropy(y, pred):
    each = keras.losses.sparse_categorical_crossentropy(y, pred, from_logits=True)
    return each


def classified():
    return train_rows()[0], labels(0, 20)


@case("class_weight={0: 1.0, 1: 5.0}")
def _():
    fit(net=network(3), of=entropy, data=classified(), class_weight={0: 1.0, 1: 5.0, 2: 2.0})


@case("sample_weight=…")
def _():
    fit(net=network(3), of=entropy, data=classified(), sample_weight=torch.arange(1.0, 21.0).numpy() / 10)


@case("validation_freq=n")
def _():
    fit(valid=True, validation_freq=2, epochs=5)


@case("validation_steps=n")
def _():
    fit(valid=True, validation_steps=1)


@case("initial_epoch=n")
def _():
    net, _ = fit(epochs=3)
    seen.clear()
    fit(net=net, epochs=5, initial_epoch=3)


@case("global_clipnorm=x")
def _():
    fit(optimizer=keras.optimizers.SGD(0.1, global_clipnorm=0.05))


@case("clipvalue=x")
def _():
    fit(optimizer=keras.optimizers.SGD(0.1, clipvalue=0.05))


@case("clipnorm=x")
def _():
    fit(optimizer=keras.optimizers.SGD(0.1, clipnorm=0.02))


@case("gradient_accumulation_steps=n")
def _():
    fit(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))


@case("gradient_accumulation_steps=n+")
def _():
    fit(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), data=rows(0, 16))


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.stop_training = True


@case("model.stop_training = True")
def _():
    fit(Stop(), epochs=4)


@case("the returned `History`")
def _():
    _, history = fit(batch=8)
    seen["logged"] = history["loss"]


class Logs(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen["logged"].append(logs["loss"])


@case("logs[\"loss\"]")
def _():
    fit(Logs())


@case("ModelCheckpoint")
def _():
    class Saved(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if os.path.exists(file):
                if os.path.getmtime(file) != self.__dict__.get("before"):
                    seen["epochs"] = [epoch]
                self.before = os.path.getmtime(file)

    file = f"{folder()}/best.keras"
    keep = keras.callbacks.ModelCheckpoint(file, monitor="scripted", mode="min", save_best_only=True)
    fit(keep, Saved(), epochs=7)


@case('EarlyStopping(monitor="val_loss", patience=n)')
def _():
    fit(keras.callbacks.EarlyStopping("scripted", mode="min", patience=2), valid=True, epochs=12)


@case("restore_best_weights=True")
def _():
    stop = keras.callbacks.EarlyStopping("scripted", mode="min", patience=9, restore_best_weights=True)
    net, _ = fit(stop, valid=True, epochs=3)
    seen["final"] = flat_of(net)


@case("start_from_epoch=n")
def _():
    stop = keras.callbacks.EarlyStopping("scripted", mode="min", patience=2, start_from_epoch=5)
    fit(stop, valid=True, epochs=12)


class Rates(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        seen["rate of each epoch"].append(float(self.model.optimizer.learning_rate))


@case("ReduceLROnPlateau")
def _():
    plateau = keras.callbacks.ReduceLROnPlateau("scripted", mode="min", factor=0.5, patience=2, min_delta=0.1)
    fit(plateau, Rates(), valid=True, epochs=12)


@case("TensorBoard")
def _():
    file = f"{folder()}/log.csv"
    fit(keras.callbacks.CSVLogger(file), epochs=3)
    seen["axis"] = [row["epoch"] for row in csv.DictReader(open(file))]


@case("set_random_seed(n)")
def _():
    keras.utils.set_random_seed(5)
    seen["numbers"] = torch.randn(20).tolist() + torch.rand(3).tolist()


@case("Adam(weight_decay=x)")
def _():
    fit(optimizer=keras.optimizers.Adam(0.01, weight_decay=0.3))


@case("Adam(epsilon=x)")
def _():
    fit(optimizer=keras.optimizers.Adam(0.01, epsilon=0.1))


@case("SGD(momentum=x)")
def _():
    drops = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.1, staircase=True)
    fit(optimizer=keras.optimizers.SGD(drops, momentum=0.9))


@case("RMSprop(rho=x)")
def _():
    fit(optimizer=keras.optimizers.RMSprop(0.01))


@case("Adagrad()")
def _():
    fit(optimizer=keras.optimizers.Adagrad(0.01))


def rates(schedule, steps=10):
    seen["rates"] = [float(schedule(step)) for step in range(steps)]


@case("PiecewiseConstantDecay(boundaries, …)")
def _():
    rates(keras.optimizers.schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.05, 0.025]))


@case("CosineDecay(lr, steps, warmup_target=x, warmup_steps=n)")
def _():
    rates(keras.optimizers.schedules.CosineDecay(0.0, 7, warmup_target=0.1, warmup_steps=3))


@case("ExponentialDecay(lr, n, rate)")
def _():
    rates(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))


@case("TopKCategoricalAccuracy(k=1)")
def _():
    metric = keras.metrics.TopKCategoricalAccuracy(k=1)
    metric.update_state([[0.0, 1.0, 0.0]] * 2, [[0.2, 0.2, 0.2], [0.1, 0.7, 0.1]])
    seen["accuracy"] = [float(metric.result())]


class Draw(keras.layers.Layer):
    """Records random numbers of a generator that belongs to the layer, as that of a dropout layer does."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(5)

    def call(self, x, training=False):
        if training:
            seen["draws"].append(float(keras.random.uniform((), seed=self.generator)))
        return x


class Killed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise KeyboardInterrupt


def interrupted(net):
    saved = folder()
    with contextlib.suppress(KeyboardInterrupt):
        fit(keras.callbacks.BackupAndRestore(saved, save_freq=3), Killed(), net=net)
    return keras.callbacks.BackupAndRestore(saved, save_freq=3)


@case("BackupAndRestore(save_freq=n)")
def _():
    backup = interrupted(network())
    seen.clear()
    fit(backup, net=network())


def drawing():
    net = network()
    return keras.Sequential([keras.Input((3,)), Draw(), *net.layers])


@case("keras.random.SeedGenerator")
def _():
    fit(net=drawing())
    whole = seen["draws"].copy()
    backup = interrupted(drawing())
    seen.clear()
    fit(backup, net=drawing())
    draws_continue(whole, seen["draws"])


if __name__ == "__main__":
    main()
