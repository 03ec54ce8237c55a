"""Functions shared by the scripts that write reference files."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save

TORCH_VERSION = "2.13.0"


def start():
    """Checks the arguments and the version of PyTorch, and makes PyTorch deterministic."""
    if len(sys.argv) > 1:
        sys.exit("this script takes no arguments")
    if torch.__version__.split("+")[0] != TORCH_VERSION:
        sys.exit(f"needs torch {TORCH_VERSION}, found {torch.__version__}: install that version")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def make_twice(make):
    """Calls `make` twice and returns its tensors, which must be equal in every bit."""
    tensors, again = make(), make()
    same = tensors.keys() == again.keys() and all(
        tensors[k].dtype == again[k].dtype
        and tensors[k].numpy().tobytes() == again[k].numpy().tobytes()
        for k in tensors
    )
    if not same:
        sys.exit("the results of two runs differ; nothing written")
    return tensors


def write(name, tensors, infinite=(), max_bytes=None):
    """Writes a file into the folder of the scripts. All tensors except those in `infinite` must be finite."""
    if not all(torch.isfinite(t).all() for k, t in tensors.items() if k not in infinite):
        sys.exit("a tensor has a NaN or infinite value; nothing written")
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    if max_bytes is not None and size > max_bytes - 10_000:  # leaves room for the header
        sys.exit(f"the tensors have {size} bytes, too many for a file of {max_bytes} bytes; nothing written")
    output = Path(__file__).resolve().with_name(name)
    output.write_bytes(save({k: t.contiguous() for k, t in tensors.items()}))
    print(f"{name}: {len(tensors)} tensors, {output.stat().st_size} bytes")
