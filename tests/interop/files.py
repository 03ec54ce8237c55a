"""Writes files of other programs, with the packages that write them, and a list of what each is.

See tests/it/interop/files.rs. `files.json` says for each file how it is loaded (`section`, `rename`, `skip`), or which
words the refusal has. Every file that can be read has the weights of `Model`: each tensor is 0, 1, 2, … plus the number of
the tensor. For advice that leads to another file, this script follows it, and lists the result as a file that is loaded.
Packages that are not installed are left out, with a line in the output.
"""

import argparse
import collections
import datetime
import enum
import gzip
import bz2
import lzma
import json
import pathlib
import pickle
import subprocess
import sys
import tarfile
import traceback
import warnings
import zlib
from importlib import metadata

import numpy as np
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file

warnings.simplefilter("ignore")
FOLDER = pathlib.Path(sys.argv[1])
FILES = []
WRITERS = []


class Model(torch.nn.Module):
    """The network of tests/it/model.rs."""

    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(4, 8)
        self.fc2 = torch.nn.Linear(8, 3)
        with torch.no_grad():
            for nth, (_, tensor) in enumerate(sorted(self.named_parameters())):
                tensor.copy_(torch.arange(1.0 * tensor.numel()).view(tensor.shape) + nth)

    def forward(self, xs):
        return self.fc2(torch.relu(self.fc1(xs)))


class WithState(Model):
    """A model whose layers have states that are not tensors."""

    def get_extra_state(self):
        return {"scale": 3}

    def set_extra_state(self, state):
        pass


class Color(enum.Enum):
    RED = 1


@torch.no_grad()
def arrays():
    return {name: tensor.numpy() for name, tensor in Model().state_dict().items()}


def path(name):
    return FOLDER / name


def reads(name, by, section=(), rename=(), skip=(), first=None):
    """The file has the weights. `first` is what the refusal without the settings says."""
    FILES.append({"file": name, "by": by, "section": section, "rename": rename, "skip": skip, "says": first or []})


def refused(name, by, *says):
    FILES.append({"file": name, "by": by, "says": list(says), "refused": True})


def writes(function):
    WRITERS.append(function)
    return function


def optimizer(model, kind=torch.optim.AdamW):
    result = kind(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result.step()
    model.load_state_dict(before)
    return result


@writes
def torch_save():
    by = f"torch {torch.__version__}"
    weights = Model().state_dict()
    torch.save(weights, path("state.pt"))
    reads("state.pt", by)
    for protocol in (3, 4, 5):
        torch.save({"model": weights, "x": {1, 2}}, path(f"protocol{protocol}.pt"), pickle_protocol=protocol)
        reads(f"protocol{protocol}.pt", by, section=["model"], first=['.section("model")'])
    foreign = {
        "args": argparse.Namespace(lr=0.1, path=pathlib.Path("x")),
        "scalar": np.float64(3),
        "array": np.arange(3),
        "path": pathlib.PurePosixPath("/x/y"),
        "time": datetime.datetime.now(),
        "set": {1, 2},
        "frozen": frozenset("ab"),
        "bytes": b"xyz",
        "bytearray": bytearray(b"xyz"),
        "complex": 1 + 2j,
        "device": torch.device("cpu"),
        "dtype": torch.float16,
        "size": torch.Size([1, 2]),
        "counter": collections.Counter("aab"),
        "ordered": collections.OrderedDict(a=1),
        "deque": collections.deque([1, 2]),
        "default": collections.defaultdict(list, a=[1]),
        "enum": Color.RED,
        "partial": __import__("functools").partial(print, 3),
        "seed": 2**63 + 5,
        "large": -(2**100),
        "slice": slice(1, 2),
        "range": range(3),
        "none": None,
        "ellipsis": ...,
        "class": argparse.Namespace,
        "function": print,
        "generator": torch.Generator().get_state(),
        "surrogate": "\udc80",
        "random": __import__("random").getstate(),
        "numpy_random": np.random.get_state(),
        "fraction": __import__("fractions").Fraction(1, 3),
        "decimal": __import__("decimal").Decimal("0.1"),
        "uuid": __import__("uuid").uuid4(),
        "exception": ValueError("x"),
        "storage": torch.ones(2).untyped_storage(),
        None: 1,
        7: 2,
        (1, 2): 3,
    }
    for protocol in (2, 5):
        torch.save({"weights": weights, **foreign}, path(f"foreign{protocol}.pt"), pickle_protocol=protocol)
        reads(f"foreign{protocol}.pt", by, section=["weights"], first=['.section("weights")'])
    for name, value in foreign.items():
        name = f"beside_{name}.pt".replace(" ", "")
        torch.save({"model": weights, "other": value}, path(name))
        reads(name, by, section=["model"])
    torch.save({"run": {"model": weights, "epoch": 3}}, path("nested.pt"))
    reads("nested.pt", by, section=["run", "model"], first=['.section("run").section("model")'])
    torch.save(WithState().state_dict(), path("extra_state.pt"))
    reads("extra_state.pt", by, skip=["_extra_state"], first=['.skip("_extra_state")'])
    torch.save({"model": weights, "ema": weights, "epoch": 3}, path("two.pt"))
    reads("two.pt", by, section=["ema"], first=['`.section("ema")` (4 tensors)', '`.section("model")` (4 tensors)'])
    model = Model()
    torch.save(model, path("whole.pt"))
    refused("whole.pt", by, "__main__.Model", "nothing in the file was executed", "model.state_dict()")
    torch.save({"model": model, "epoch": 3}, path("whole_inside.pt"))
    refused("whole_inside.pt", by, "`model` is a Python object (`__main__.Model`)", "nothing in the file was executed")
    torch.save(optimizer(model).state_dict(), path("optimizer.pt"))
    refused("optimizer.pt", by, "is the state of an optimizer")
    torch.save({"optimizer": optimizer(model).state_dict(), "epoch": 3}, path("optimizer_inside.pt"))
    refused("optimizer_inside.pt", by, "`optimizer` is the state of an optimizer")
    torch.save([weights], path("list.pt"))
    refused("list.pt", by, "found a `list`")
    torch.save({}, path("empty.pt"))
    refused("empty.pt", by, "the file has no tensors")
    for protocol in (2, 4):
        name = f"legacy{protocol}.pt"
        torch.save(weights, path(name), _use_new_zipfile_serialization=False, pickle_protocol=protocol)
        refused(name, by, "from before version 1.6", "`torch.load`")
    torch.save(torch.load(path("legacy2.pt")), path("legacy2_again.pt"))
    reads("legacy2_again.pt", by)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer(model), [1, 2])
    torch.save({"model": weights, "schedule": schedule.state_dict()}, path("multi_step.pt"))
    reads("multi_step.pt", by, section=["model"], first=['.section("model")'])


@writes
def wrapped():
    by = f"torch {torch.__version__}"
    model = torch.nn.DataParallel(Model())
    torch.save(model.state_dict(), path("data_parallel.pt"))
    reads("data_parallel.pt", by, rename=[["module.*", "*"]], first=['.rename_pattern("module.*", "*")'])
    torch.distributed.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    torch.save({"model": model.state_dict(), "epoch": 3}, path("ddp.pt"))
    reads("ddp.pt", by, section=["model"], rename=[["module.*", "*"]], first=['.section("model")'])
    torch.save(torch.compile(Model()).state_dict(), path("compiled.pt"))
    reads("compiled.pt", by, rename=[["_orig_mod.*", "*"]], first=['.rename_pattern("_orig_mod.*", "*")'])
    model = torch.nn.parallel.DistributedDataParallel(torch.compile(Model()))
    save_file(model.state_dict(), path("ddp_compiled.safetensors"))
    says = ['.rename_pattern("module._orig_mod.*", "*")']
    reads("ddp_compiled.safetensors", by, rename=[["module._orig_mod.*", "*"]], first=says)
    model = Model()
    model.fc1 = torch.compile(model.fc1)
    torch.save(model.state_dict(), path("compiled_layer.pt"))
    reads("compiled_layer.pt", by, rename=[["*_orig_mod.*", "**"]], first=['.rename_pattern("*_orig_mod.*", "**")'])
    model = torch.nn.Module()
    model.net = Model()
    torch.save(model.state_dict(), path("net.pt"))
    reads("net.pt", by, rename=[["net.*", "*"]], first=['.rename_pattern("net.*", "*")'])


@writes
def averages():
    by = f"torch {torch.__version__}"
    model = torch.optim.swa_utils.AveragedModel(Model())
    torch.save(model.state_dict(), path("averaged.pt"))
    says = ['.rename_pattern("module.*", "*").skip("n_averaged")']
    reads("averaged.pt", by, rename=[["module.*", "*"]], skip=["n_averaged"], first=says)
    save_file(model.state_dict(), path("averaged.safetensors"))
    reads("averaged.safetensors", by, rename=[["module.*", "*"]], skip=["n_averaged"], first=says)
    from timm.utils import ModelEmaV3

    torch.save({"state_dict_ema": ModelEmaV3(Model()).state_dict()}, path("ema_timm.pt"))
    name = f"timm {metadata.version('timm')}"
    reads("ema_timm.pt", name, section=["state_dict_ema"], rename=[["module.*", "*"]], first=['.section("state_dict_ema")'])


@writes
def torch_script():
    by = f"torch {torch.__version__}"
    torch.jit.script(Model()).save(path("script.pt"))
    reads("script.pt", by)
    torch.jit.trace(Model(), torch.ones(2, 4)).save(path("trace.pt"))
    reads("trace.pt", by)
    model = torch.jit.script(torch.nn.Sequential(Model().eval()).eval())
    model.save(path("nested_script.pt"))
    reads("nested_script.pt", by, rename=[["0.*", "*"]], first=['.rename_pattern("0.*", "*")'])
    torch.jit.freeze(torch.jit.script(Model().eval())).save(path("frozen.pt"))
    refused("frozen.pt", by, "the TorchScript file has no weights", "torch.jit.freeze")
    torch.export.save(torch.export.export(Model(), (torch.ones(2, 4),)), path("exported.pt2"))
    refused("exported.pt2", by, "torch.export.save", "`torch.export.load`")
    torch.save(torch.export.load(path("exported.pt2")).state_dict, path("exported_again.pt"))
    reads("exported_again.pt", by)


@writes
def distributed_checkpoint():
    import torch.distributed.checkpoint as dcp

    by = f"torch {torch.__version__}"
    dcp.save({"model": Model().state_dict()}, checkpoint_id=path("dcp"))
    refused("dcp", by, "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE")
    command = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch", path("dcp"), path("dcp.pt")]
    subprocess.run(command, check=True, capture_output=True)
    reads("dcp.pt", by, section=["model"], first=['.section("model")'])
    part = next(path("dcp").glob("*.distcp"))
    refused(f"dcp/{part.name}", by, "dcp_to_torch FOLDER FILE")
    refused("dcp/.metadata", by, "a Python pickle")


@writes
def lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, **settings):
            super().__init__()
            self.save_hyperparameters()
            self.model = Model()

        def training_step(self, batch, _):
            loss = 0 * self.model(batch[0]).sum()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
            return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1])]

    by = f"lightning {lightning.__version__}"
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 4)), batch_size=2)
    settings = {"accelerator": "cpu", "max_epochs": 2, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    for name in ("lightning", "lightning_average"):
        callbacks = [lightning.pytorch.callbacks.ModelCheckpoint(FOLDER / f"{name}_folder", monitor="loss")]
        if name == "lightning_average":
            callbacks.append(lightning.pytorch.callbacks.EMAWeightAveraging())
        trainer = lightning.Trainer(callbacks=callbacks, default_root_dir=FOLDER, **settings)
        trainer.fit(Module(args=argparse.Namespace(x=1), path=pathlib.Path("x")), data)
        trainer.save_checkpoint(path(f"{name}.ckpt"))
        if name == "lightning":
            says = ['LoadWeights::new().section("state_dict")`']
            reads(f"{name}.ckpt", by, section=["state_dict"], rename=[["model.*", "*"]], first=says)
            trainer.save_checkpoint(path("lightning_weights.ckpt"), weights_only=True)
            reads("lightning_weights.ckpt", by, section=["state_dict"], rename=[["model.*", "*"]], first=says)
        else:
            # Read as well, but Lightning's averages of equal weights differ from them by rounding.
            refused(f"{name}.ckpt", by, '`.section("state_dict")` (4 tensors)', '`.section("current_model_state")` (4 tensors)')


@writes
def mmengine():
    from mmengine.runner import Runner, save_checkpoint
    from mmengine.logging import MessageHub
    from mmengine.model import BaseModel
    import mmengine

    by = f"mmengine {mmengine.__version__}"

    class Wrapped(BaseModel):
        def __init__(self):
            super().__init__()
            self.net = Model()

        def forward(self, inputs, mode="tensor"):
            return {"loss": 0 * self.net(inputs).sum()} if mode == "loss" else self.net(inputs)

    data = torch.utils.data.DataLoader([{"inputs": torch.ones(4)}] * 4, batch_size=2)
    for name, hooks in (("mmengine", []), ("mmengine_ema", [{"type": "EMAHook"}])):
        runner = Runner(
            Wrapped(), str(path(f"{name}_folder")), data, train_cfg={"by_epoch": True, "max_epochs": 1},
            optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.0}}, custom_hooks=hooks, experiment_name=name, log_level="ERROR",
        )
        runner.train()
        path(f"{name}_folder/epoch_1.pth").rename(path(f"{name}.pth"))
        reads(f"{name}.pth", by, section=["state_dict"], rename=[["net.*", "*"]], first=['.section("state_dict")'])
    save_checkpoint({"state_dict": Model().state_dict(), "meta": {"hub": MessageHub.get_instance("x").state_dict()}}, str(path("mmengine_hub.pth")))
    reads("mmengine_hub.pth", by, section=["state_dict"], first=['.section("state_dict")'])


@writes
def fastai():
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner, save_model
    from fastcore.foundation import L

    by = f"fastai {metadata.version('fastai')}"
    data = [(torch.ones(4), torch.ones(3))] * 4
    learn = Learner(DataLoaders.from_dsets(data, data, bs=2), Model(), loss_func=torch.nn.MSELoss(), path=FOLDER, lr=0.0, wd=0.0)
    learn.fit(1)
    learn.save("fastai")
    reads("models/fastai.pth", by, section=["model"], first=['.section("model")'])
    learn.save("fastai_weights", with_opt=False)
    reads("models/fastai_weights.pth", by)
    torch.save({"model": Model().state_dict(), "items": L(1, 2)}, path("fastai_l.pth"))
    reads("fastai_l.pth", by, section=["model"])


@writes
def trainer_tools():
    from trainer_tools.trainer import Trainer as Their

    by = f"trainer-tools {metadata.version('trainer-tools')}"
    from trainer_tools.hooks import CheckpointHook

    data = torch.utils.data.DataLoader([(torch.ones(4), torch.ones(3))] * 4, batch_size=2)
    model = Model()
    their = Their(
        model, lambda batch, trainer: {"loss": (0 * trainer.model(batch[0])).sum()}, train_dl=data, valid_dl=data,
        optim=torch.optim.SGD(model.parameters(), lr=0.0), epochs=1, hooks=[CheckpointHook(save_dir=str(path("trainer_tools")), save_every_steps=1)], device="cpu",
    )
    their.fit()
    for found in sorted(path("trainer_tools").rglob("*.pt")):
        reads(str(found.relative_to(FOLDER)), by, section=["model"], first=["LoadWeights::new().section("])


@writes
def hugging_face():
    import accelerate
    import transformers

    class Net(transformers.PreTrainedModel):
        config_class = transformers.PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.model = Model()
            self.post_init()

        def _init_weights(self, module):
            pass

        def forward(self, xs=None, labels=None):
            logits = self.model(xs)
            return {"loss": 0 * logits.sum(), "logits": logits}

    by = f"transformers {transformers.__version__}"
    arguments = transformers.TrainingArguments(
        str(path("hf")), max_steps=2, save_steps=2, learning_rate=0.0, weight_decay=0.0, report_to=[], use_cpu=True, disable_tqdm=True
    )
    data = [{"xs": torch.ones(4), "labels": torch.tensor(1)}] * 4
    transformers.Trainer(Net(transformers.PretrainedConfig()), arguments, train_dataset=data).train()
    folder = "hf/checkpoint-2"
    reads(f"{folder}/model.safetensors", by, rename=[["model.*", "*"]], first=['.rename_pattern("model.*", "*")'])
    refused(folder, by, "`model.safetensors`")
    refused(f"{folder}/optimizer.pt", by, "is the state of an optimizer")
    refused(f"{folder}/trainer_state.json", by, "a JSON file", "name the file with the weights")
    refused(f"{folder}/training_args.bin", by, "transformers.training_args.TrainingArguments", "nothing in the file was executed")
    Net(transformers.PretrainedConfig()).save_pretrained(path("shards"), max_shard_size=150)
    refused("shards", by, "several files", "`.partial(true)`")
    refused("shards/model.safetensors.index.json", by, "`weight_map`", "`.partial(true)`")
    parts = sorted(part.name for part in path("shards").glob("*.safetensors"))
    FILES.append({"file": "shards", "by": by, "says": [], "parts": parts, "rename": [["model.*", "*"]]})
    prepared = accelerate.Accelerator(cpu=True)
    model = prepared.prepare(Model())
    prepared.save_state(str(path("accelerate")))
    by = f"accelerate {accelerate.__version__}"
    reads("accelerate/model.safetensors", by)
    refused("accelerate", by, "name one of the files in it" if path("accelerate/custom.pt").exists() else "name the file in it: `model.safetensors`")
    refused("accelerate/random_states_0.pkl", by)


@writes
def published_models():
    import timm
    import torchvision

    for by, model in (
        (f"timm {timm.__version__}", timm.create_model("resnet10t", num_classes=3)),
        (f"torchvision {torchvision.__version__}", torchvision.models.squeezenet1_1(num_classes=3)),
    ):
        name = by.split()[0]
        torch.save({"state_dict": model.state_dict(), "arch": name, "args": argparse.Namespace()}, path(f"{name}_model.pt"))
        # The names do not fit, but the file is read.
        refused(f"{name}_model.pt", by, "the file has", '.section("state_dict")')
        save_file(model.state_dict(), path(f"{name}_model.safetensors"))
        refused(f"{name}_model.safetensors", by, "missing: `fc1.bias`")
    from torchvision.models import shufflenet_v2_x0_5

    torch.jit.script(shufflenet_v2_x0_5()).save(path("torchvision_script.pt"))
    refused("torchvision_script.pt", f"torchvision {torchvision.__version__}", "missing: `fc1.bias`")


@writes
def peft():
    from peft import LoraConfig, get_peft_model
    import peft

    by = f"peft {peft.__version__}"
    get_peft_model(Model(), LoraConfig(r=2, target_modules=["fc1"])).save_pretrained(path("adapter"))
    refused("adapter/adapter_model.safetensors", by, "missing: ")
    refused("adapter", by, "name the file in it: `adapter_model.safetensors`")
    model = get_peft_model(Model(), LoraConfig(r=2, target_modules=["fc1"], init_lora_weights="olora"))
    model.save_pretrained(path("adapter_olora"))
    FILES.append({"file": "adapter_olora", "by": by, "says": ["`init_lora_weights` is \"olora\"", "merge_and_unload()"], "adapter": True})


@writes
def numpy():
    by = f"numpy {np.__version__}"
    np.savez(path("weights.npz"), **arrays())
    np.savez_compressed(path("compressed.npz"), **arrays())
    np.save(path("weight.npy"), arrays()["fc1.weight"])
    for name in ("weights.npz", "compressed.npz"):
        refused(name, by, "a NumPy archive (`.npz`)", "safetensors.numpy.save_file(dict(numpy.load(…)), …)")
    refused("weight.npy", by, "a NumPy array (`.npy`)", "numpy.load")
    save_numpy(dict(np.load(path("compressed.npz"))), path("npz_again.safetensors"))
    reads("npz_again.safetensors", by)


@writes
def safetensors():
    by = f"safetensors {metadata.version('safetensors')}"
    save_file(Model().state_dict(), path("torch.safetensors"), metadata={"format": "pt"})
    reads("torch.safetensors", by)
    save_numpy(arrays(), path("numpy.safetensors"))
    reads("numpy.safetensors", by)
    whole = path("torch.safetensors").read_bytes()
    path("cut.safetensors").write_bytes(whole[:-10])
    refused("cut.safetensors", by, "damaged or truncated", "download")
    path("cut_header.safetensors").write_bytes(whole[:50])
    refused("cut_header.safetensors", by, "damaged or truncated", "download")
    from safetensors.flax import save_file as save_flax
    import jax.numpy as jnp

    save_flax({name: jnp.asarray(array) for name, array in arrays().items()}, path("flax.safetensors"))
    reads("flax.safetensors", by)


@writes
def pickles():
    import joblib

    by = f"Python {sys.version.split()[0]}"
    for protocol in range(6):
        with open(path(f"protocol{protocol}.pkl"), "wb") as file:
            pickle.dump({"fc1.weight": [1.0, 2.0], "x": collections.OrderedDict()}, file, protocol)
        if protocol > 1:
            refused(f"protocol{protocol}.pkl", by, "a Python pickle", "if you trust it")
        else:
            refused(f"protocol{protocol}.pkl", by, "expected weights")
    by = f"joblib {joblib.__version__}"
    joblib.dump(arrays(), path("weights.joblib"))
    refused("weights.joblib", by, "a Python pickle", "joblib.dump")
    joblib.dump(arrays(), path("zlib.joblib"), compress=3)
    refused("zlib.joblib", by, "compressed with zlib", "safetensors.numpy.save_file")
    save_numpy(joblib.load(path("zlib.joblib")), path("joblib_again.safetensors"))
    reads("joblib_again.safetensors", by)


@writes
def archives():
    by = f"Python {sys.version.split()[0]}"
    torch.save(Model().state_dict(), path("inner.pt"))
    content = path("inner.pt").read_bytes()
    for name, data, says in (
        ("inner.pt.gz", gzip.compress(content), "gunzip"),
        ("inner.pt.bz2", bz2.compress(content), "bunzip2"),
        ("inner.pt.xz", lzma.compress(content), "unxz"),
        ("inner.pt.zlib", zlib.compress(content), "compressed with zlib"),
    ):
        path(name).write_bytes(data)
        refused(name, by, says)
    for name, kind in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        with tarfile.open(path(f"{name}.tar"), "w", format=kind) as tar:
            tar.add(path("inner.pt"), "inner.pt")
        refused(f"{name}.tar", by, "a tar archive", "unpack it")
    import zipfile

    with zipfile.ZipFile(path("inner.zip"), "w", zipfile.ZIP_DEFLATED) as file:
        file.write(path("inner.pt"), "inner.pt")
    refused("inner.zip", by, "a zip archive", "unpack it")
    path("again.pt").write_bytes(content[: len(content) // 2])
    refused("again.pt", by, "truncated", "download the file again")
    # What the first releases of PyTorch wrote.
    with tarfile.open(path("old_torch.tar"), "w") as tar:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            tar.add(path("inner.pt"), name)
    refused("old_torch.tar", by, "a tar archive of PyTorch", "torch.load(…, weights_only=False)")


@writes
def texts():
    by = "by hand"
    path("lfs.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
    )
    refused("lfs.safetensors", by, "a Git LFS pointer", "git lfs pull")
    path("page.pt").write_text("<!doctype html>\n<html><head><title>Sign in</title></head></html>")
    refused("page.pt", by, "a web page (HTML)", "/resolve/")
    path("error.bin").write_text('<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>')
    refused("error.bin", by, "an XML document", "download it again")
    path("missing.safetensors").write_text("Entry not found")
    refused("missing.safetensors", by, 'a text file that begins with "Entry not found"', "download it again")
    path("empty.safetensors").write_bytes(b"")
    refused("empty.safetensors", by, "an empty file", "download it again")
    for length in (1, 7, 8):
        path(f"short{length}.safetensors").write_bytes(b"\0" * length)
        refused(f"short{length}.safetensors", by, "begins with the bytes 00")


@writes
def hdf5():
    import h5py

    by = f"h5py {h5py.__version__}"
    with h5py.File(path("weights.h5"), "w") as file:
        for name, array in arrays().items():
            file[name] = array
    refused("weights.h5", by, "an HDF5 file", "h5py")
    with h5py.File(path("user_block.h5"), "w", userblock_size=1024) as file:
        file["x"] = arrays()["fc1.weight"]
    refused("user_block.h5", by, "an HDF5 file")
    with h5py.File(path("weights.h5")) as file:
        save_numpy({name: file[name][()] for name in arrays()}, path("h5_again.safetensors"))
    reads("h5_again.safetensors", by)


@writes
def keras():
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    by = f"keras {keras.__version__}"
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(3)])
    model.save(path("model.keras"))
    refused("model.keras", by, "a Keras archive", "keras.models.load_model")
    model.save_weights(path("model.weights.h5"))
    refused("model.weights.h5", by, "an HDF5 file", "Keras")
    model.save(path("model.h5"))
    refused("model.h5", by, "an HDF5 file", "Keras")
    loaded = keras.models.load_model(path("model.keras"))
    save_numpy({it.path: np.asarray(it.value.detach()) for it in loaded.variables}, path("keras_again.safetensors"))
    refused("keras_again.safetensors", by, "missing: `fc1.bias`")


@writes
def gguf():
    import gguf

    by = f"gguf {metadata.version('gguf')}"
    for name, kind in (("gguf", None), ("f16", gguf.GGMLQuantizationType.F16), ("q8", gguf.GGMLQuantizationType.Q8_0)):
        writer = gguf.GGUFWriter(path(f"{name}.gguf"), "llama")
        writer.add_block_count(1)
        for key, array in arrays().items():
            data = np.tile(array, 32).astype(np.float32) if name == "q8" else array
            data = gguf.quantize(data, kind) if kind else data
            writer.add_tensor(key, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        refused(f"{name}.gguf", by, "a GGUF file", "gguf.GGUFReader")
    tensors = gguf.GGUFReader(path("gguf.gguf")).tensors
    save_numpy({it.name: gguf.dequantize(it.data, it.tensor_type) for it in tensors}, path("gguf_again.safetensors"))
    reads("gguf_again.safetensors", by)


@writes
def onnx():
    import onnx
    from onnx import helper, numpy_helper

    by = f"onnx {onnx.__version__}"
    weights = [numpy_helper.from_array(array, name) for name, array in arrays().items()]
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    nodes = [helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["y"], transB=1)]
    graph = helper.make_graph(nodes, "g", [value("x", [1, 4])], [value("y", [1, 8])], weights)
    onnx.save(helper.make_model(graph, producer_name="x", doc_string="y"), path("made.onnx"))
    refused("made.onnx", by, "an ONNX file", "the state dict of the model")
    onnx.save(helper.make_model(graph), path("plain.onnx"))
    refused("plain.onnx", by, "an ONNX file")
    torch.onnx.export(Model(), (torch.ones(1, 4),), path("torch.onnx"), verbose=False)
    refused("torch.onnx", f"torch {torch.__version__}", "an ONNX file")


@writes
def flax():
    import flax.serialization
    import flax.traverse_util

    by = f"flax {metadata.version('flax')}"
    tree = {"params": flax.traverse_util.unflatten_dict(arrays(), sep=".")}
    path("flax.msgpack").write_bytes(flax.serialization.msgpack_serialize(tree))
    refused("flax.msgpack", by, "a MessagePack file", "msgpack_restore")
    path("flax_bare.msgpack").write_bytes(flax.serialization.msgpack_serialize(tree["params"]))
    refused("flax_bare.msgpack", by, "a MessagePack file")
    path("flax_bytes.msgpack").write_bytes(flax.serialization.to_bytes({"step": 3, **tree}))
    refused("flax_bytes.msgpack", by, "a MessagePack file")
    loaded = flax.serialization.msgpack_restore(path("flax_bare.msgpack").read_bytes())
    save_numpy(flax.traverse_util.flatten_dict(loaded, sep="."), path("flax_again.safetensors"))
    reads("flax_again.safetensors", by)


@writes
def tables_and_pictures():
    import pandas
    from PIL import Image

    by = f"pandas {pandas.__version__}"
    frame = pandas.DataFrame({"x": [1.0, 2.0]})
    frame.to_parquet(path("table.parquet"))
    refused("table.parquet", by, "a Parquet file", "name the file with the weights")
    frame.to_feather(path("table.feather"))
    refused("table.feather", by, "an Arrow or Feather file")
    frame.to_csv(path("table.csv"))
    refused("table.csv", by, "a text file that begins with")
    by = f"pillow {Image.__version__}"
    for kind in ("png", "jpeg", "gif", "webp", "pdf"):
        Image.new("RGB", (4, 4)).save(path(f"picture.{kind}"))
        refused(f"picture.{kind}", by, kind.replace("webp", "WebP") if kind == "webp" else kind.upper())


def main():
    torch.set_num_threads(1)
    missing = []
    for write in WRITERS:
        count = len(FILES)
        try:
            write()
        except ImportError as error:
            missing.append(f"{write.__name__}: {error}")
        except Exception:
            traceback.print_exc()
            missing.append(f"{write.__name__}: failed after {len(FILES) - count} files")
    path("files.json").write_text(json.dumps({"files": FILES, "missing": missing}, indent=1))
    print("\n".join(missing))


main()
