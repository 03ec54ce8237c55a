"""Trains, uses and merges adapters with peft, and writes what this crate compares: see tests/it/interop/lora.rs."""

import json
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

FOLDER = pathlib.Path(sys.argv[1])


class Model(nn.Module):
    """The network of tests/it/interop/lora.rs."""

    def __init__(self):
        super().__init__()
        block = nn.ModuleDict({"q_proj": nn.Linear(4, 6), "norm": nn.LayerNorm(6), "c_attn": Conv1D(5, 6)})
        self.lm = nn.ModuleDict({"0": block, "head": nn.Linear(5, 3)})
        self.load_state_dict(load_file(FOLDER / "weights.safetensors"))

    def forward(self, xs):
        block = self.lm["0"]
        xs = block["norm"](torch.tanh(block["q_proj"](xs)))
        return self.lm["head"](torch.tanh(block["c_attn"](xs)))


def main():
    torch.set_num_threads(1)
    data = load_file(FOLDER / "data.safetensors")
    inputs, labels = data["inputs"], data["labels"]
    results = {}

    # What this crate has trained and saved.
    model = PeftModel.from_pretrained(Model(), FOLDER / "ours").eval()
    with torch.no_grad():
        results["ours"] = model(inputs)
        results["ours_merged"] = model.merge_and_unload()(inputs)

    # A step from the adapters with which this crate begins.
    model = PeftModel.from_pretrained(Model(), FOLDER / "initial", is_trainable=True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.05, weight_decay=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        results["theirs"] = model(inputs)
    model.save_pretrained(FOLDER / "theirs")

    # Adapters that peft has created, rank stabilized, without a head.
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "c_attn"], use_rslora=True, init_lora_weights=False)
    torch.manual_seed(1)
    model = get_peft_model(Model(), config).eval()
    with torch.no_grad():
        results["random"] = model(inputs)
    model.save_pretrained(FOLDER / "random")

    # The adapter of an initialization that changes the weights of the model too, and the merged model.
    config = LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights="olora")
    model = get_peft_model(Model(), config)
    with torch.no_grad():
        model.base_model.model.lm["0"]["q_proj"].lora_B["default"].weight.add_(0.5)
    model.save_pretrained(FOLDER / "olora")
    model = PeftModel.from_pretrained(Model(), FOLDER / "olora").eval()
    with torch.no_grad():
        results["olora"] = model(inputs)
    save_file(model.merge_and_unload().state_dict(), FOLDER / "merged.safetensors")

    config = LoraConfig().to_dict() | {"peft_version": None}
    (FOLDER / "config.json").write_text(json.dumps(config, default=str))

    config = LoraConfig(r=3, target_modules=["q_proj"], use_dora=True)
    get_peft_model(Model(), config).save_pretrained(FOLDER / "dora")
    save_file({name: tensor.contiguous() for name, tensor in results.items()}, FOLDER / "results.safetensors")


main()
