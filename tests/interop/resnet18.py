"""Writes the activations and the gradients of the outputs of every layer of a ResNet-18, from PyTorch's own hooks.

Reads weights.safetensors and batch.safetensors (inputs, labels) from the folder given as argument. Writes hooks.safetensors,
with `<module>/output` and `<module>/grad`, and hooks.json: the modules in the order of the forward and of the backward pass,
and the floating-point operations of the forward pass.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.downsample = None
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [64, 64, 128, 256, 512]
        for nth in range(1, 5):
            first = BasicBlock(widths[nth - 1], widths[nth], 1 if nth == 1 else 2)
            setattr(self, f"layer{nth}", nn.Sequential(first, BasicBlock(widths[nth], widths[nth], 1)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    weights, batch = load_file(folder / "weights.safetensors"), load_file(folder / "batch.safetensors")
    net = ResNet18(weights["fc.bias"].numel())
    missing, unexpected = net.load_state_dict(weights, strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing), (missing, unexpected)

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.eval()(batch["inputs"])

    kept, forward, backward = {}, [], []
    for name, module in net.named_modules():
        if not name:
            continue

        def after_forward(_module, _inputs, output, name=name):
            forward.append(name)
            kept[f"{name}/output"] = output.detach().clone()

        def after_backward(_module, _inputs, grads, name=name):
            kept[f"{name}/grad"] = grads[0].detach().clone()

        module.register_forward_hook(after_forward)
        module.register_full_backward_hook(after_backward)
        # A full backward hook is called after the module's own backward pass, and this one before it.
        module.register_full_backward_pre_hook(lambda _module, _grads, name=name: backward.append(name))
    loss = nn.functional.cross_entropy(net.train()(batch["inputs"]), batch["labels"])
    loss.backward()

    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, folder / "hooks.safetensors")
    order = {"forward": forward, "backward": backward, "flops": counter.get_total_flops(), "loss": loss.item()}
    (folder / "hooks.json").write_text(json.dumps(order))


if __name__ == "__main__":
    main()
