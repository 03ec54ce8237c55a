"""What the cases of all frameworks share: the network, the rows, and what is recorded.

`tests/it/interop/migration/` builds the same network and the same rows by the same formulas, in f64.
"""

import collections
import json
import pathlib
import sys
import tempfile
import traceback

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

# A metric that does not depend on the model: its value after each epoch.
SCRIPT = [5.0, 4.0, 4.5, 3.95, 4.2, 4.1, 4.05, 3.9, 4.0, 4.1, 4.2, 4.3]

# What the current case has recorded, by the name of the series.
seen = collections.defaultdict(list)
_cases = {}


def case(name):
    """Registers a case for the row of this name. The name with a `+` is a second case, for what the row advises."""

    def register(function):
        _cases[name] = function
        return function

    return register


def main():
    """Runs all cases, and writes what they recorded into the folder that is given as argument."""
    results = {}
    for name, function in _cases.items():
        seen.clear()
        try:
            function()
            results[name] = {key: [float(value) for value in values] for key, values in seen.items()}
        except Exception:
            results[name] = traceback.format_exc()
    page = pathlib.Path(sys.argv[0]).stem.removeprefix("with_")
    (pathlib.Path(sys.argv[1]) / f"{page}.json").write_text(json.dumps(results))


def written(name):
    """The path of a file that the Rust case reads."""
    return pathlib.Path(sys.argv[1]) / name


def folder():
    return tempfile.mkdtemp(prefix="migration-", dir=sys.argv[1])


def values(nth, count):
    """The initial values of parameter `nth`."""
    return torch.tensor([((k * 5 + nth * 3) % 13) / 13 - 0.45 for k in range(count)])


class Net(nn.Module):
    """Two layers, and a normalization between them if a class for it is given."""

    def __init__(self, norm=None, inputs=3, outputs=1):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(inputs, 4), nn.Linear(4, outputs)
        if norm:
            self.norm = norm(4)
        with torch.no_grad():
            for nth, name in enumerate(["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]):
                parameter = self.get_parameter(name)
                parameter.copy_(values(nth, parameter.numel()).view_as(parameter))

    def forward(self, x):
        x = self.fc1(x)
        if hasattr(self, "norm"):
            x = self.norm(x)
        return self.fc2(torch.tanh(x))


def rows(first, count):
    numbers = range(first, first + count)
    x = torch.tensor([[((7 * i + 3 * j) % 11) / 11 - 0.5 for j in range(3)] for i in numbers])
    return x, torch.tensor([[((5 * i) % 7) / 7 - 0.3] for i in numbers])


def labels(first, count):
    return torch.tensor([(i * i) % 3 for i in range(first, first + count)])


def train_rows():
    return rows(0, 20)


def valid_rows():
    return rows(20, 8)


def loader(data, batch=4, **settings):
    return DataLoader(TensorDataset(*data), batch_size=batch, **settings)


def mse(net, x, y):
    """The loss, which is recorded if it is one of training."""
    loss = F.mse_loss(net(x), y)
    if torch.is_grad_enabled():
        seen["losses"].append(loss.item())
    return loss


def flat(net):
    named = sorted(net.named_parameters())
    return [value for _, parameter in named for value in parameter.detach().flatten().tolist()]


def watch(optimizer, net):
    """Records the weights and the rates after each optimizer step."""

    def after_step(optimizer, *_):
        seen["weights"] += flat(net)
        seen["rates"] += [group["lr"] for group in optimizer.param_groups]

    optimizer.register_step_post_hook(after_step)
    return optimizer


def sgd(net, lr=0.1, **settings):
    return watch(torch.optim.SGD(net.parameters(), lr=lr, **settings), net)


# The optimizers of runs that continue here.
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
}


def continued(first, then):
    """Runs `first` without recording, and `then` with what `first` returned. Each `then` has ten steps."""
    before = {name: values.copy() for name, values in seen.items()}
    result = first()
    seen.clear()
    then(result)
    for name, values in seen.items():
        before[name] = before.get(name, []) + values
    seen.clear()
    seen.update(before)
    seen["steps"] = [10] * (len(seen["losses"]) // 10)


def draws_continue(whole, resumed):
    """Records whether the first random numbers of a resumed run are those from the fourth step of the whole run on."""
    seen.clear()
    seen["same numbers"] = [whole[3:5] == resumed[:2]]
