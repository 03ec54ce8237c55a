"""Mixed precision, averaged weights, SAM and MixUp with PyTorch's own classes and loops.

Reads weights.safetensors and data.safetensors (inputs, labels: eight batches) from the folder given as argument, and, where
they exist, ema.safetensors and swa.safetensors (the weights after each step) and averages.safetensors (of a checkpoint).
Writes theirs.safetensors. If there is a file `speed`, it only writes seconds.txt: the time of a step under autocast.
"""

import pathlib
import sys
import time

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

EPOCHS = 25
OVERFLOWS = [0, 1, 9, 10, 40, 41]


class Net(nn.Module):
    def __init__(self, weights):
        super().__init__()
        width, inputs = weights["fc1.weight"].shape
        self.fc1, self.fc2, self.fc3 = nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.load_state_dict(weights)

    def forward(self, x):
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class SAM(torch.optim.Optimizer):
    """The two steps of Foret et al. (2021), and of Kwon et al. (2021) if adaptive."""

    def __init__(self, base, rho, adaptive=False):
        super().__init__(base.param_groups, {})
        self.base, self.rho, self.adaptive = base, rho, adaptive

    @torch.no_grad()
    def first_step(self):
        params = [p for group in self.param_groups for p in group["params"]]
        norms = [((p.abs() if self.adaptive else 1.0) * p.grad).norm(p=2) for p in params]
        scale = self.rho / (torch.norm(torch.stack(norms), p=2) + 1e-12)
        for p in params:
            self.state[p]["old"] = p.data.clone()
            p.add_((p.pow(2) if self.adaptive else 1.0) * p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


def bf16(weights, batches):
    net = Net(weights)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    losses = []
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"bf16/losses": torch.tensor(losses, dtype=torch.float64)}


def fp16(weights, batches):
    net = Net(weights)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device="cpu", init_scale=1024.0, growth_interval=4)
    scales, steps, taken, seen = [], [], 0, 0
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(net(inputs), labels)
            scaler.scale(loss).backward()
            if seen in OVERFLOWS:
                for p in net.parameters():
                    p.grad.fill_(float("inf"))
            before = net.fc3.bias.detach().clone()
            scaler.step(optimizer)
            taken += not torch.equal(before, net.fc3.bias)
            scaler.update()
            scales.append(scaler.get_scale())
            steps.append(taken)
            seen += 1
    kept = {f"fp16/{name}": p.detach() for name, p in net.named_parameters()}
    kept["fp16/scales"] = torch.tensor(scales, dtype=torch.float64)
    kept["fp16/steps"] = torch.tensor(steps, dtype=torch.float64)
    return kept


def averages(folder, weights, names):
    """Averages the weights of the files. `names` is the order of the parameters in a row."""

    def average(file, every, start, **settings):
        net = Net(weights)
        averaged = AveragedModel(net, **settings)
        for nth, row in enumerate(load_file(folder / file)["live"]):
            if (nth + 1) % every or nth < start:
                continue
            params, offset = dict(net.named_parameters()), 0
            for name in names:
                count = params[name].numel()
                params[name].data.copy_(row[offset : offset + count].view_as(params[name]))
                offset += count
            averaged.update_parameters(net)
        own = dict(averaged.module.named_parameters())
        return torch.cat([own[name].detach().flatten() for name in names])

    kept = {f"read/{name}": tensor for name, tensor in load_file(folder / "averages.safetensors").items()}
    kept["ema"] = average("ema.safetensors", 1, 0, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    kept["swa"] = average("swa.safetensors", 8, 25 * 8)  # at the end of each epoch from 25 on
    return kept


def sam(weights, batches, name, rho, adaptive):
    net = Net(weights)
    base = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    optimizer = SAM(base, rho, adaptive)
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.first_step()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.second_step()
    return {f"{name}/{key}": p.detach() for key, p in net.named_parameters()}


def mix_up(weights, batches):
    """Zhang et al. (2018): the losses of both targets are mixed."""
    net = Net(weights)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(5)
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            weight = torch.distributions.Beta(0.4, 0.4).sample().item()
            order = torch.randperm(len(inputs))
            logits = net(weight * inputs + (1 - weight) * inputs[order])
            loss = weight * nn.functional.cross_entropy(logits, labels)
            loss = loss + (1 - weight) * nn.functional.cross_entropy(logits, labels[order])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {f"mix_up/{key}": p.detach() for key, p in net.named_parameters()}


def seconds(weights, batches):
    """Returns the time of a step, the best of three runs of 50."""
    net, (inputs, labels) = Net(weights), batches[0]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    times = []
    for _ in range(3):
        total, start = 0.0, time.perf_counter()
        for _ in range(50):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        times.append((time.perf_counter() - start) / 50)
    return min(times[1:])


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    weights, data = load_file(folder / "weights.safetensors"), load_file(folder / "data.safetensors")
    batches = list(zip(data["inputs"].chunk(8), data["labels"].chunk(8)))
    if (folder / "speed").exists():
        (folder / "seconds.txt").write_text(repr(seconds(weights, batches)))
        return
    kept = {**bf16(weights, batches), **fp16(weights, batches), **mix_up(weights, batches)}
    kept |= sam(weights, batches, "sam", 0.05, False) | sam(weights, batches, "asam", 0.5, True)
    if (folder / "averages.safetensors").exists():
        kept |= averages(folder, weights, ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight", "fc3.bias", "fc3.weight"])
    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, folder / "theirs.safetensors")


if __name__ == "__main__":
    main()
