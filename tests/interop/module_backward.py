"""The order of PyTorch's full backward (pre-)hooks and post-accumulate hooks, and the gradients.

Reads weights.safetensors and data.safetensors (inputs, labels: one batch) from the folder given as argument. For each of the
networks of `module_backward.rs`, writes <network>.txt, a line for each call of a hook, and <network>.safetensors, the
gradients. A module has its gradients when the last of its parameters has; the inner module of two that are complete at once
comes first.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(x)))


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.block, self.head = nn.Linear(4, 6), Residual(), nn.Linear(6, 3)

    def forward(self, x):
        x = self.first(x)
        if self.kind == "recomputed":
            x = checkpoint(self.block, x, use_reentrant=False)
        else:
            x = self.block(x)
        if self.kind == "twice":
            x = self.block(torch.tanh(x))
        if self.kind == "tied":
            x = x @ self.first.weight @ self.first.weight.T
        return self.head(x)


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    weights, data = load_file(folder / "weights.safetensors"), load_file(folder / "data.safetensors")
    for kind in ["plain", "twice", "tied", "frozen", "recomputed", "replaced"]:
        net, calls, afterwards = Net(kind), [], []
        net.load_state_dict(weights)
        if kind == "frozen":
            net.first.requires_grad_(False)
            net.block.fc2.bias.requires_grad_(False)
        missing = {}
        for name, module in net.named_modules():
            if not name:
                continue

            def before(module, grads, name=name):
                calls.append(f"before {name}")
                return (grads[0] * 2,) if kind == "replaced" and name == "block" else None

            module.register_full_backward_pre_hook(before)
            module.register_full_backward_hook(lambda module, ins, outs, name=name: afterwards.append(f"after {name}"))
            missing[name] = sum(param.requires_grad for param in module.parameters())
        for name, param in net.named_parameters():
            if not param.requires_grad:
                continue

            def accumulated(param, name=name):
                for module in sorted(missing, key=len, reverse=True):
                    if name.startswith(module + "."):
                        missing[module] -= 1
                        if missing[module] == 0:
                            calls.append(f"grads {module}")

            param.register_post_accumulate_grad_hook(accumulated)
        nn.functional.cross_entropy(net(data["inputs"]), data["labels"]).backward()
        (folder / f"{kind}.txt").write_text("\n".join(calls))
        assert len(afterwards) >= 4, afterwards
        grads = {name: param.grad for name, param in net.named_parameters() if param.grad is not None}
        save_file(grads, folder / f"{kind}.safetensors")


main()
