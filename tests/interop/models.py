"""Writes small models of transformers and torchvision with random weights, and what they compute.

In the folder given as argument, each model gets a folder with `config.json` (transformers only), `model.safetensors` as
`save_pretrained` writes it, `grads.safetensors` and `after.safetensors` (the same names, with the gradients and the values after
one training step), and `data.safetensors`: inputs, labels, `logits` in evaluation mode and `loss` in training mode. `names` has
a file for each published model, with the names and shapes of the tensors that its class saves.
"""

import copy
import pathlib
import shutil
import sys

import torch
import torchvision
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

LEARNING_RATE = 1e-3


def gpt2(**sizes):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def bert(cls, **sizes):
    return cls(transformers.BertConfig(**sizes))


def vit(**sizes):
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))


def save(model, path):
    """Saves a model in the layout of the hub, as one file."""
    if isinstance(model, transformers.PreTrainedModel):
        folder = path.parent / "saved"
        model.save_pretrained(folder)
        shutil.copy(folder / "config.json", path.parent / "config.json")
        (folder / "model.safetensors").replace(path)
        shutil.rmtree(folder)
    else:
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)


def with_grads(model):
    """Returns a copy of the model whose parameters are the gradients."""
    grads = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, own in zip(grads.parameters(), model.parameters(), strict=True):
            parameter.copy_(torch.zeros_like(own) if own.grad is None else own.grad)
    return grads


def compare(folder, model, data, forward, loss, optimizer):
    """Writes a model, its logits and loss, its gradients, and the model after one step."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # biases too, and larger weights than at first
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        if hasattr(model, "bn1"):
            for name, buffer in model.named_buffers():
                if name.endswith("running_mean"):
                    buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
                if name.endswith("running_var"):
                    buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    save(model, folder / "model.safetensors")
    with torch.no_grad():
        data |= {name: tensor for name, tensor in forward(model.eval()).items()}
    value = loss(model.train())
    value.backward()
    data["loss"] = value.detach()
    save(with_grads(model), folder / "grads.safetensors")
    optimizer(model.parameters()).step()
    save(model, folder / "after.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in data.items()}, folder / "data.safetensors")


def adamw(parameters):
    # A large epsilon: where a gradient is rounding error, its sign would otherwise decide a whole step.
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-4, weight_decay=0.1)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9, weight_decay=1e-2)


def compare_gpt2(folder):
    model = gpt2(vocab_size=61, n_positions=24, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                 bos_token_id=0, eos_token_id=0)  # fmt: skip
    ids = torch.randint(1, 61, (3, 10))
    labels = ids.clone()
    labels[1, :4] = labels[2, 7:] = -100
    sequence = torch.tensor([[0] * 4 + [1] * 6, [0] * 9 + [1], [0] * 2 + [1] * 3 + [2] * 5])
    positions = torch.cat([torch.arange(len(part)) for row in sequence for part in row.split(row.bincount().tolist())]).view(3, 10)
    mask = (sequence[:, :, None] == sequence[:, None, :])[:, None]
    padding = torch.ones(3, 10, dtype=torch.bool)
    padding[1, 6:] = padding[2, 9:] = False

    def forward(model):
        generated = model.generate(ids[:, :4], max_new_tokens=20, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
        return {
            "logits": model(ids).logits,
            "packed": model(ids, attention_mask=mask & torch.ones(10, 10, dtype=torch.bool).tril(), position_ids=positions).logits,
            "padded": model(ids, attention_mask=padding).logits,
            "generated": generated[:, 4:],
        }

    data = {"ids": ids, "labels": labels, "mask": mask, "positions": positions, "padding": padding}
    compare(folder / "gpt2", model, data, forward, lambda model: model(ids, labels=labels).loss, adamw)


def compare_bert(folder):
    sizes = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                 max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    ids = torch.randint(1, 61, (3, 10))
    mask = torch.ones(3, 10, dtype=torch.bool)
    mask[1, 6:] = mask[2, 9:] = False
    ids[~mask] = 0
    types = (torch.arange(10) > 4).long().expand(3, 10).contiguous()
    labels = torch.where(torch.rand(3, 10) < 0.4, ids, -100)
    inputs = dict(input_ids=ids, attention_mask=mask, token_type_ids=types)
    data = {"ids": ids, "mask": mask, "types": types}

    model = bert(transformers.BertForMaskedLM, **sizes)
    forward = lambda model: {"logits": model(**inputs).logits}
    compare(folder / "bert_masked_lm", model, data | {"labels": labels}, forward, lambda model: model(**inputs, labels=labels).loss, adamw)

    model = bert(transformers.BertForSequenceClassification, **sizes, num_labels=3)
    labels = torch.tensor([2, 0, 1])
    compare(folder / "bert_classifier", model, data | {"labels": labels}, forward, lambda model: model(**inputs, labels=labels).loss, adamw)


def compare_images(folder):
    labels = torch.tensor([2, 0, 1, 2])
    model = vit(image_size=24, patch_size=8, num_channels=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=48, num_labels=3)  # fmt: skip
    images = torch.randn(4, 3, 24, 24)
    data = {"images": images, "labels": labels}
    forward = lambda model: {"logits": model(images).logits}
    compare(folder / "vit", model, data, forward, lambda model: model(images, labels=labels).loss, adamw)

    # Batch norm over few values would magnify rounding errors.
    images = torch.randn(4, 3, 96, 96)
    data = {"images": images, "labels": labels}
    for name in ["resnet18", "resnet34", "resnet50"]:
        forward = lambda model: {"logits": model(images)}
        loss = lambda model: nn.functional.cross_entropy(model(images), labels)
        compare(folder / name, getattr(torchvision.models, name)(num_classes=3), dict(data), forward, loss, sgd)


def write_names(folder):
    """Writes the names and shapes of the published models, whose weights are not downloaded."""
    names = folder / "names"
    names.mkdir()
    published = {
        "gpt2": lambda: gpt2(),
        "bert_masked_lm": lambda: bert(transformers.BertForMaskedLM),
        "bert_classifier": lambda: bert(transformers.BertForSequenceClassification),
        "vit": lambda: vit(num_labels=1000),
        "resnet18": torchvision.models.resnet18,
        "resnet34": torchvision.models.resnet34,
        "resnet50": torchvision.models.resnet50,
    }
    for name, create in published.items():
        path = names / "model.safetensors"
        save(create(), path)
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_slice(name).get_shape() for name in file.keys() if not name.endswith("num_batches_tracked")}
        path.unlink()
        lines = [" ".join(map(str, [name, *shape])) for name, shape in sorted(tensors.items())]
        (names / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    compare_gpt2(folder)
    compare_bert(folder)
    compare_images(folder)
    write_names(folder)


if __name__ == "__main__":
    main()
