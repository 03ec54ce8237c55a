"""The rows of the page about PyTorch, with PyTorch."""

import torch
import torch.distributed.checkpoint as dcp
from timm.scheduler import CosineLRScheduler
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from common import *


def initial(*modules):
    """Records the initial values, drawn in f32 after `torch.manual_seed(5)`."""
    for make in modules:
        torch.manual_seed(5)
        module = make(dtype=torch.float32)
        for name, parameter in module.named_parameters():
            seen[name.removesuffix("_l0")] += parameter.detach().double().flatten().tolist()


@case("nn.Linear(n, m)")
def _():
    initial(lambda **settings: nn.Linear(40, 20, **settings))


@case("nn.Conv2d(n, m, k)")
def _():
    initial(lambda **settings: nn.Conv2d(3, 8, 5, **settings))


@case("nn.BatchNorm1d(n)")
def _():
    initial(lambda **settings: nn.BatchNorm1d(20, **settings))


@case("nn.LayerNorm(n)")
def _():
    initial(lambda **settings: nn.LayerNorm(20, **settings))


@case("nn.Embedding(n, m)")
def _():
    initial(lambda **settings: nn.Embedding(10, 4, **settings))


@case("nn.LSTM(n, m)")
def _():
    initial(lambda **settings: nn.LSTM(6, 16, **settings))


@case("nn.LSTM(…, dropout=p)")
def _():
    torch.manual_seed(5)
    lstm = nn.LSTM(3, 4, num_layers=2, dropout=0.5).eval()
    x = train_rows()[0].unsqueeze(0)
    seen["differs"] = [float((lstm(x)[0] - lstm(x)[0]).abs().max() > 0)]


def run(optimizer=sgd, schedule=None, after_step=None, net=None, epochs=2, clip=None):
    net = net or Net()
    optimizer = optimizer(net)
    schedule = schedule and schedule(optimizer)
    for epoch in range(epochs):
        for x, y in loader(train_rows()):
            optimizer.zero_grad()
            mse(net, x, y).backward()
            if clip:
                clip(net)
            optimizer.step()
            if schedule:
                schedule.step()
            if after_step:
                after_step(net)
    return net


def optimized(make, **settings):
    return run(lambda net: watch(make(net.parameters(), **settings), net))


@case("SGD(lr)")
def _():
    optimized(torch.optim.SGD, lr=0.1)


@case("SGD(momentum=x, nesterov=True, weight_decay=x)")
def _():
    optimized(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)


@case("Adam(lr)")
def _():
    optimized(torch.optim.Adam, lr=0.01)


@case("Adam(weight_decay=x)")
def _():
    optimized(torch.optim.Adam, lr=0.01, weight_decay=0.1)


@case("AdamW(lr)")
def _():
    optimized(torch.optim.AdamW, lr=0.01)


@case("RMSprop(lr)")
def _():
    optimized(torch.optim.RMSprop, lr=0.01)


@case("Adagrad(lr)")
def _():
    optimized(torch.optim.Adagrad, lr=0.01)


@case("clip_grad_norm_(…, x)")
def _():
    run(clip=lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.05))


@case("clip_grad_value_(…, x)")
def _():
    run(clip=lambda net: nn.utils.clip_grad_value_(net.parameters(), 0.05))


@case("if (i + 1) % n == 0")
def _():
    net = Net()
    optimizer = sgd(net)
    for epoch in range(2):
        for i, (x, y) in enumerate(loader(train_rows())):
            (mse(net, x, y) / 2).backward()
            if (i + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()


def scheduled(make, steps=10, **settings):
    run(schedule=lambda optimizer: make(optimizer, **settings))


schedules = torch.optim.lr_scheduler


@case("StepLR(n, gamma)")
def _():
    scheduled(schedules.StepLR, step_size=3, gamma=0.5)


@case("MultiStepLR(milestones, gamma)")
def _():
    scheduled(schedules.MultiStepLR, milestones=[3, 6], gamma=0.5)


@case("ExponentialLR(gamma)")
def _():
    scheduled(schedules.ExponentialLR, gamma=0.8)


@case("CosineAnnealingLR(T_max)")
def _():
    scheduled(schedules.CosineAnnealingLR, T_max=5)


@case("CosineAnnealingLR(T_max)+")
def _():
    scheduled(schedules.CosineAnnealingLR, T_max=10)


@case("CosineAnnealingWarmRestarts(T_0)")
def _():
    scheduled(schedules.CosineAnnealingWarmRestarts, T_0=4)


@case("LinearLR()")
def _():
    scheduled(schedules.LinearLR)


@case("PolynomialLR(n, power)")
def _():
    scheduled(schedules.PolynomialLR, total_iters=10, power=2.0)


@case("OneCycleLR(max_lr, total_steps)")
def _():
    def optimizer(net):
        return sgd(net, momentum=0.9)

    run(optimizer, lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, total_steps=11))


@case("SequentialLR([LinearLR, CosineAnnealingLR])")
def _():
    def make(optimizer):
        warm_up = schedules.LinearLR(optimizer, start_factor=0.25, total_iters=3)
        return schedules.SequentialLR(optimizer, [warm_up, schedules.CosineAnnealingLR(optimizer, 7)], milestones=[3])

    run(schedule=make)


@case("SequentialLR([…, OneCycleLR])")
def _():
    def make(optimizer):
        constant = schedules.ConstantLR(optimizer, factor=1.0, total_iters=3)
        cycle = schedules.OneCycleLR(optimizer, 0.1, total_steps=8, cycle_momentum=False)
        return schedules.SequentialLR(optimizer, [constant, cycle], milestones=[3])

    run(schedule=make)


@case("ReduceLROnPlateau(patience=n)")
def _():
    net = Net()
    optimizer = sgd(net)
    plateau = schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    for epoch in range(12):
        for x, y in loader(train_rows()):
            optimizer.zero_grad()
            mse(net, x, y).backward()
            optimizer.step()
        plateau.step(SCRIPT[epoch])


@case("AveragedModel(…)")
def _():
    net = Net()
    average = AveragedModel(net)
    optimizer = sgd(net)
    for epoch in range(4):
        for x, y in loader(train_rows()):
            optimizer.zero_grad()
            mse(net, x, y).backward()
            optimizer.step()
        if epoch >= 2:
            average.update_parameters(net)
    seen["average"] = flat(average.module)


@case("AveragedModel(…, multi_avg_fn=get_ema_multi_avg_fn(x))")
def _():
    net = Net()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    run(net=net, after_step=average.update_parameters)
    seen["average"] = flat(average.module)


@case("update_bn(…)")
def _():
    net = Net(nn.BatchNorm1d)
    average = AveragedModel(net)
    optimizer = sgd(net)
    for epoch in range(3):
        for x, y in loader(train_rows()):
            optimizer.zero_grad()
            mse(net, x, y).backward()
            optimizer.step()
        if epoch >= 1:
            average.update_parameters(net)
    update_bn(loader(train_rows()), average)
    seen.clear()
    norm = average.module.norm
    seen["statistics"] = norm.running_mean.tolist() + norm.running_var.tolist()


@case("F.cross_entropy(…, weight=w, label_smoothing=x)")
def _():
    net = Net(outputs=3)
    optimizer = sgd(net)
    weight = torch.tensor([1.0, 5.0, 2.0])
    for epoch in range(2):
        for x, y in loader((train_rows()[0], labels(0, 20))):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y, weight=weight, label_smoothing=0.2)
            loss.backward()
            seen["losses"].append(loss.item())
            optimizer.step()


@case("torch.manual_seed(n)")
def _():
    torch.manual_seed(5)
    seen["numbers"] = torch.randn(20).tolist() + torch.rand(3).tolist()


ALGORITHMS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, lr_decay=0.1),
    "Muon": lambda parameters: torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=0.01),
}


@case("optimizer.state_dict()")
def _():
    for name, optimizer in ALGORITHMS.items():
        net = Net()
        if name == "Muon":
            net.fc1.bias.requires_grad_(False)
            net.fc2.bias.requires_grad_(False)
        optimizer = watch(optimizer(net.parameters()), net)

        def epochs():
            for _ in range(2):
                for x, y in loader(train_rows()):
                    mse(net, x, y).backward()
                    optimizer.step()
                    optimizer.zero_grad()

        def first():
            epochs()
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, written(f"{name}.pt"))

        continued(first, lambda _: epochs())
        if name == "AdamW":
            # Once more, from here on.
            optimizers = get_optimizer_state_dict(net, optimizer)
            saved = folder()
            dcp.save({"model": net.state_dict(), "optimizer": optimizers}, checkpoint_id=saved, no_dist=True)
            dcp_to_torch_save(saved, written("distributed.pt"))
            continued(lambda: None, lambda _: epochs())


def rates_of_timm(name, **settings):
    @case(name)
    def _():
        optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
        schedule = CosineLRScheduler(optimizer, t_initial=10, lr_min=0.01, **settings)
        for step in range(14):
            seen["rates"].append(optimizer.param_groups[0]["lr"])
            schedule.step(step + 1)


WARM_UP = dict(warmup_t=3, warmup_lr_init=0.001)
rates_of_timm("CosineLRScheduler(t_initial=10, lr_min=0.01)")
rates_of_timm("CosineLRScheduler(…, warmup_t=3, warmup_lr_init=0.001, warmup_prefix=True)", warmup_prefix=True, **WARM_UP)
rates_of_timm("CosineLRScheduler(…, warmup_t=3, warmup_lr_init=0.001)", **WARM_UP)
rates_of_timm("CosineLRScheduler(…, k_decay=2.0)", k_decay=2.0)


@case("SWALR(optimizer, swa_lr=0.01, anneal_epochs=5)")
def _():
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
    schedule = SWALR(optimizer, swa_lr=0.01, anneal_epochs=5)
    for _ in range(14):
        seen["rates"].append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()


if __name__ == "__main__":
    main()
