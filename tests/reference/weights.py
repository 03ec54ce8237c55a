"""Writes `state_dict.safetensors`, `checkpoint.pt`, `optimizers.pt`, `unsupported.pt` and `unsupported.safetensors`, or reads weights of this crate.

The Rust tests read the files that this script writes. To write them again, or to read weights of this
crate with PyTorch, in a separate virtual environment (Python 3.10 or newer):

    python3 -m venv refvenv
    refvenv/bin/pip install torch==2.13.0 numpy safetensors
    refvenv/bin/python tests/reference/weights.py
    refvenv/bin/python tests/reference/weights.py FILE

The first form writes all files into the folder of the script. The second one reads a file of
`Trainer::save_weights`, or the `model.safetensors` of a checkpoint.

The model: `net.fc1` Linear(4, 8), `net.bn` BatchNorm1d(8), `net.fc2` Linear(8, 3); each tensor
contains 0, 1, 2, …. In `checkpoint.pt`, which `torch.save` writes, the tensors are under the key `state_dict`, in
different dtypes, some of them transposed or parts of a common storage. `unsupported.pt` and `unsupported.safetensors`
contain the model without the batch norm and without `net.`, and entries `extra.…` of dtypes and layouts that this crate
does not read. `optimizers.pt` has states of optimizers of the model without the batch norm, after three steps: a list, as
Lightning writes it, then others by name; the tensors of each contain 0, 1, 2, …. FILE may contain that model, with or without `net.` and the batch norm:
`load_state_dict` reports what is missing.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


class Model(torch.nn.Module):
    def __init__(self, with_norm):
        super().__init__()
        layers = {"fc1": torch.nn.Linear(4, 8), "fc2": torch.nn.Linear(8, 3)}
        if with_norm:
            layers["bn"] = torch.nn.BatchNorm1d(8)
        self.net = torch.nn.ModuleDict(layers)


def write(path):
    model = Model(with_norm=True)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    save_file(model.state_dict(), path)
    print(f"wrote {path}")
    weights = model.state_dict()
    shared = torch.cat([torch.full([5], 99.0), weights["net.fc1.bias"], weights["net.fc2.bias"]])
    weights["net.fc1.bias"], weights["net.fc2.bias"] = shared[5:13], shared[13:]
    weights["net.fc1.weight"] = weights["net.fc1.weight"].t().contiguous().t().half()
    weights["net.fc2.weight"] = torch.nn.Parameter(weights["net.fc2.weight"].bfloat16())
    weights["net.bn.bias"] = weights["net.bn.bias"].double()
    weights["net.bn.weight"] = weights["net.bn.weight"].to(torch.int32)
    path = path.with_name("checkpoint.pt")
    torch.save({"epoch": 3, "lr": 0.1, "done": False, "best": None, "state_dict": weights}, path)
    print(f"wrote {path}")


def write_unsupported(path):
    weights = {name: torch.arange(1.0 * tensor.numel()).view(tensor.shape) for name, tensor in Model(False).net.state_dict().items()}
    base = torch.arange(6.0).view(3, 2)
    extra = {
        "float8": base.to(torch.float8_e4m3fn),
        "complex": base.to(torch.complex64),
        "uint16": base.to(torch.uint16),
    }
    save_file(weights | {f"extra.{name}": tensor for name, tensor in extra.items()}, path.with_suffix(".safetensors"))
    extra |= {
        "complex_half": base.to(torch.complex32),
        "sparse": base.to_sparse(),
        "sparse_rows": base.to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(base, 0.1, 0, torch.qint8),
        "quantized_channels": torch.quantize_per_channel(base, torch.ones(3), torch.zeros(3), 0, torch.quint8),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "meta": torch.ones(2, device="meta"),
        "negated": torch.tensor([1 + 2j]).conj().imag,
    }
    # A tensor and a parameter with attributes, which can be read.
    weights["fc1.bias"].origin = weights["fc2.weight"].origin = 3
    parameter = torch.nn.Parameter(weights["fc2.bias"])
    parameter.origin = 3
    weights["fc2.bias"] = parameter
    torch.save(weights | {f"extra.{name}": tensor for name, tensor in extra.items()}, path)
    print(f"wrote {path}")


def write_optimizers(path):
    net = Model(False).net
    named, parameters = dict(net.named_parameters()), list(net.parameters())
    kinds = {
        "lightning": torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
        "sgd": torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "nadam": torch.optim.NAdam(parameters),
        "half": torch.optim.AdamW(parameters[:2], weight_decay=0.1),
        "named": torch.optim.AdamW(net.named_parameters(), weight_decay=0.1),
        "plain": torch.optim.SGD(parameters, lr=0.1),
    }
    for optimizer in kinds.values():
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        for state in optimizer.state.values():
            for name, tensor in state.items():
                if tensor.dim() > 0:
                    tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    states = {name: optimizer.state_dict() for name, optimizer in kinds.items()}
    states["lightning"] = [states["lightning"]]
    # As `torch.distributed.checkpoint` has it.
    state, group = states["named"]["state"], states["named"]["param_groups"][0]
    settings = {key: value for key, value in group.items() if key != "param_names"}
    states["distributed"] = {
        "state": dict(zip(named, state.values())), "param_groups": [{**settings, "params": list(named)}]
    }
    torch.save(states, path)
    print(f"wrote {path}")


def read(path):
    tensors = load_file(path)
    model = Model(with_norm=any(name.startswith("bn.") for name in tensors))
    print(model.net.load_state_dict(tensors))
    for name, tensor in sorted(tensors.items()):
        print(f"{name:24} {str(tensor.dtype):16} {list(tensor.shape)}")


if len(sys.argv) > 1:
    read(sys.argv[1])
else:
    write(Path(__file__).with_name("state_dict.safetensors"))
    write_optimizers(Path(__file__).with_name("optimizers.pt"))
    write_unsupported(Path(__file__).with_name("unsupported.pt"))
