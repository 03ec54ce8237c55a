"""Checks that each operator in operators.json has a kernel for CUDA in PyTorch's dispatcher. Needs no GPU, but a build for CUDA."""

import json
import pathlib
import sys

import torch

# Kernels for the CPU, which operators choose by the device: a GPU has others for the same purpose.
OF_THE_CPU = {
    "aten::mkldnn_convolution": "aten::cudnn_convolution",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "aten::_scaled_dot_product_flash_attention_backward",
}
# Composite kernels call other operators, on any device.
KEYS = ["CUDA", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"]

names = json.loads((pathlib.Path(sys.argv[1]) / "operators.json").read_text())
if torch.version.cuda is None:
    sys.exit("this PyTorch is not a build for CUDA")

overloads = {}
for overload in torch._C._dispatch_get_all_op_names():
    overloads.setdefault(overload.split(".")[0], []).append(overload)


def has_kernel(name):
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(each, key) for each in overloads.get(name, []) for key in KEYS)


of_the_cpu_only = "aten::_scaled_dot_product_flash_attention_for_cpu"
assert has_kernel("aten::addmm") and not has_kernel(of_the_cpu_only), "the list of kernels is not what this script expects"
missing = [name for name in names if not has_kernel(OF_THE_CPU.get(name, name))]
if missing:
    sys.exit(f"no kernel for CUDA: {', '.join(missing)}")
print(f"{len(names)} operators have a kernel for CUDA")
