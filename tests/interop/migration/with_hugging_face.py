"""The rows of the page about Hugging Face, with the Trainer of transformers."""

import logging
import os
import pathlib
import shutil
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch.utils.data import SequentialSampler
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from common import *

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Model(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.net = Net(norm)

    def forward(self, x, labels=None):
        return {"loss": mse(self.net, x, labels), "logits": self.net(x).detach()}


class Rows(torch.utils.data.Dataset):
    def __init__(self, data):
        self.x, self.y = data

    def __len__(self):
        return len(self.x)

    def __getitem__(self, nth):
        return {"x": self.x[nth], "labels": self.y[nth]}


class Watched(Trainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)

    def create_optimizer(self, *arguments):
        optimizer = super().create_optimizer(*arguments)
        return watch(optimizer, self.model.net)


class Evaluations(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **_):
        if "eval_loss" in metrics:
            seen["valid"].append(metrics["eval_loss"])


PLAIN = dict(lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=0.0, num_train_epochs=2)


def run(*callbacks, model=None, valid=False, start=None, data=None, plain=True, watched=True, optimizer=None, **arguments):
    quiet = dict(report_to="none", disable_tqdm=True, use_cpu=True, logging_strategy="no", save_strategy="no")
    given = dict(output_dir=folder(), per_device_train_batch_size=4, per_device_eval_batch_size=4, learning_rate=0.01)
    arguments = {**quiet, **given, **(PLAIN if plain else {}), **arguments}
    evaluated = valid if isinstance(valid, dict) else Rows(valid_rows()) if valid else None
    trainer = (Watched if watched else Trainer)(
        model or Model(),
        TrainingArguments(**arguments),
        train_dataset=Rows(data or train_rows()),
        eval_dataset=evaluated,
        callbacks=[Evaluations(), *callbacks],
    )
    if optimizer:
        trainer.optimizer = optimizer(trainer.model.parameters())
    numbers = iter(SCRIPT * 2)
    if valid:
        trainer.compute_metrics = lambda _: {"scripted": next(numbers)}
    trainer.train(resume_from_checkpoint=start)
    seen["steps"] = [trainer.state.global_step]
    if not optimizer:
        # There are two groups, one without decay, of the same rate.
        seen["rates"] = seen["rates"][::2]
    return trainer


@case("num_train_epochs=n")
def _():
    run(num_train_epochs=3)


@case("max_steps=n")
def _():
    run(max_steps=7)


@case("dataloader_drop_last=True")
def _():
    run(per_device_train_batch_size=8, dataloader_drop_last=True)


@case("gradient_accumulation_steps=n")
def _():
    run(gradient_accumulation_steps=2)


@case("max_grad_norm=x")
def _():
    run(max_grad_norm=0.05, weight_decay=0.0)


@case("learning_rate=x")
def _():
    run(model=Model(nn.LayerNorm), plain=False, num_train_epochs=2, weight_decay=0.3)


@case('eval_strategy="epoch"')
def _():
    run(valid=True, eval_strategy="epoch")


@case('eval_strategy="steps"')
def _():
    run(valid=True, eval_strategy="steps", eval_steps=3)


@case('eval_dataset={"clean": …, "noisy": …}')
def _():
    class Both(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **_):
            for name in ("clean", "noisy"):
                if f"eval_{name}_loss" in metrics:
                    seen[name].append(metrics[f"eval_{name}_loss"])

    sets = {"clean": Rows(valid_rows()), "noisy": Rows(rows(28, 6))}
    run(Both(), valid=sets, eval_strategy="epoch")


class Logs(TrainerCallback):
    def on_log(self, args, state, control, logs, **_):
        if "loss" in logs:
            seen["logged"].append(logs["loss"])
            seen["axis"].append(state.global_step)


@case("logging_steps=n")
def _():
    run(Logs(), logging_strategy="steps", logging_steps=3)


class Stop(TrainerCallback):
    def __init__(self, flag):
        self.flag = flag

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            setattr(control, self.flag, True)


@case("control.should_training_stop = True")
def _():
    run(Stop("should_training_stop"))


@case("control.should_epoch_stop = True")
def _():
    run(Stop("should_epoch_stop"))


@case('lr_scheduler_type="cosine", warmup_steps=500')
def _():
    run(lr_scheduler_type="cosine", warmup_steps=3)


@case("warmup_ratio=0.1")
def _():
    run(lr_scheduler_type="cosine", warmup_steps=0.3)


@case("requires_grad = False")
def _():
    model = Model()
    model.net.fc1.requires_grad_(False)
    run(model=model)
    del seen["rates"]


@case("load_best_model_at_end=True")
def _():
    best = dict(load_best_model_at_end=True, metric_for_best_model="scripted", greater_is_better=False)
    trainer = run(valid=True, eval_strategy="epoch", save_strategy="epoch", num_train_epochs=3, **best)
    seen["final"] = flat(trainer.model.net)


@case("save_total_limit=3")
def _():
    saved = folder()
    run(output_dir=saved, save_strategy="epoch", save_total_limit=2, num_train_epochs=4)
    names = [file.name for file in pathlib.Path(saved).iterdir() if file.name.startswith("checkpoint-")]
    seen["epochs"] = sorted(int(name.split("-")[1]) // 5 - 1 for name in names)


@case("save_steps=500")
def _():
    saved = folder()
    run(Stop("should_training_stop"), output_dir=saved, save_strategy="steps", save_steps=3)
    seen.clear()
    run(start=f"{saved}/checkpoint-3")


@case("EarlyStoppingCallback(early_stopping_patience=n)")
def _():
    best = dict(load_best_model_at_end=True, metric_for_best_model="scripted", greater_is_better=False)
    saves = dict(eval_strategy="epoch", save_strategy="epoch", num_train_epochs=12)
    run(EarlyStoppingCallback(2), valid=True, **saves, **best)


@case("adam_beta1=x")
def _():
    run(adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-3)


@case("label_smoothing_factor=x")
def _():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.config = Net(outputs=3), transformers.PretrainedConfig()

        def forward(self, x, labels=None):
            return {"logits": self.net(x)}

    class Losses(Watched):
        def compute_loss(self, *arguments, **others):
            loss = super().compute_loss(*arguments, **others)
            seen["losses"].append(loss.item())
            return loss

    arguments = dict(output_dir=folder(), report_to="none", disable_tqdm=True, use_cpu=True, logging_strategy="no")
    arguments.update(save_strategy="no", per_device_train_batch_size=4, learning_rate=0.01, **PLAIN)
    data = Rows((train_rows()[0], labels(0, 20)))
    Losses(Classifier(), TrainingArguments(label_smoothing_factor=0.2, **arguments), train_dataset=data).train()
    seen["rates"] = seen["rates"][::2]


@case("optimizer.pt")
def _():
    for name, optimizer in {"hugging-face": None, "hugging-face-sgd": OPTIMIZERS["sgd"]}.items():
        settings = dict(lr_scheduler_type="linear", weight_decay=0.1, num_train_epochs=4, optimizer=optimizer)

        def first():
            saved = folder()
            run(output_dir=saved, save_strategy="steps", save_steps=10, **settings)
            shutil.copytree(f"{saved}/checkpoint-10", written(name))
            return f"{saved}/checkpoint-10"

        continued(first, lambda path: run(start=path, **settings))


class Drawing(Model):
    def forward(self, x, labels=None):
        seen["draws"].append(torch.rand(()).item())
        return super().forward(x, labels)


@case("torch.rand")
def _():
    saved = folder()
    run(model=Drawing(), output_dir=saved, save_strategy="steps", save_steps=3)
    whole = seen["draws"].copy()
    seen.clear()
    run(model=Drawing(), start=f"{saved}/checkpoint-3")
    draws_continue(whole, seen["draws"])


if __name__ == "__main__":
    main()
