"""Reads the models that the tests saved with `from_pretrained`, and compares them with those that Python trained.

In the folder given as argument, each model of transformers has the folders that `models.py` describes, and in it `saved`, with
`config.json` and the `model.safetensors` of `save_weights`.
"""

import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

CLASSES = {
    "gpt2": transformers.GPT2LMHeadModel,
    "bert_masked_lm": transformers.BertForMaskedLM,
    "bert_classifier": transformers.BertForSequenceClassification,
    "vit": transformers.ViTForImageClassification,
}


def main():
    folder = pathlib.Path(sys.argv[1])
    for name, cls in CLASSES.items():
        model, info = cls.from_pretrained(folder / name / "saved", output_loading_info=True)
        problems = {key: names for key, names in info.items() if names}
        assert not problems, (name, problems)
        model.save_pretrained(folder / name / "again")
        ours, theirs = load_file(folder / name / "again" / "model.safetensors"), load_file(folder / name / "after.safetensors")
        assert ours.keys() == theirs.keys(), name
        for variable, tensor in theirs.items():
            difference = (ours[variable] - tensor).abs().max() / tensor.abs().max().clamp(min=1e-5)
            assert difference <= 1e-5, (name, variable, difference)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
