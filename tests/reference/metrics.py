"""Writes `metrics.json`: the values that torchmetrics computes for each metric, with their data.

The Rust tests read that file and compute the same metrics, over the whole data and merged from 1 to 7
uneven parts.

To write the file again, in a separate virtual environment (Python 3.10 or newer):

    python3 -m venv refvenv
    refvenv/bin/pip install torch==2.13.0 torchmetrics==1.9.0
    refvenv/bin/python tests/reference/metrics.py

The script needs no GPU and uses fixed seeds. `cases(count, seed)` is also used by
`tests/interop/metrics.py`, for random cases.

Each case: `metric` (the name of its Rust type), `args` (what the Rust test builds it from), `pred` and
`target` (`shape`, `kind`, `data`), or `preds` and `targets` for texts, `value`: a number, a list, or
null for NaN.
"""

import json
import math
import random
import sys
import warnings
from pathlib import Path

import torch
import torchmetrics
import torchmetrics.classification as tc
import torchmetrics.image as ti
import torchmetrics.regression as tr
import torchmetrics.segmentation as ts
import torchmetrics.text as tt

warnings.filterwarnings("ignore")
OUTPUT = Path(__file__).resolve().with_name("metrics.json")
AVERAGES = {"micro": "micro", "macro": "macro", "weighted": "weighted", "per_class": "none"}


def tensor(data):
    kind = {torch.float64: "double", torch.float32: "float", torch.int64: "int"}[data.dtype]
    values = [float(f"{it:.6g}") if kind != "int" else it for it in data.flatten().tolist()]
    return {"shape": list(data.shape), "kind": kind, "data": [it if math.isfinite(it) else None for it in values]}


def back(it):
    dtype = {"double": torch.float64, "float": torch.float32, "int": torch.int64}[it["kind"]]
    return torch.tensor([math.nan if x is None else x for x in it["data"]], dtype=dtype).reshape(it["shape"])


def plain(value):
    value = value.double().tolist()

    def number(it):
        if isinstance(it, list):
            return [number(x) for x in it]
        return it if math.isfinite(it) else ("inf" if it > 0 else "-inf") if math.isinf(it) else None

    return number(value)


def run(cases, metric, args, reference, pred, target):
    """Computes one case in double precision, from the numbers as they are written to the file."""
    pred, target = tensor(pred), tensor(target)
    reference = reference.set_dtype(torch.float64)
    reference.update(back(pred), back(target))
    cases.append({"metric": metric, "args": args, "pred": pred, "target": target, "value": plain(reference.compute())})


def scores(rng, *shape, logits):
    data = torch.randn(*shape, generator=rng, dtype=torch.float64) * 2
    return data if logits else (data.softmax(1) if len(shape) > 1 else data.sigmoid())


def classification(cases, rng, pick, n):
    """One case of each classification metric, with random settings and data of `n` samples."""
    classes = pick.randint(2, 5)
    logits = pick.random() < 0.5
    ignored = pick.choice([None, None, -100, 1])
    extra = pick.choice([[], [], [3]])
    top_k = pick.choice([1, 1, 2]) if not extra else 1

    def targets(*shape, high):
        data = torch.randint(0, high, shape, generator=rng)
        if pick.random() < 0.3:  # a class that never occurs
            data = data.clamp(max=max(high - 2, 0))
        if ignored is not None:
            data = torch.where(torch.rand(shape, generator=rng) < 0.2, torch.tensor(ignored), data)
            data[0] = 0  # torchmetrics fails if every target is ignored
        return data

    def data(kind):
        if kind == "binary":
            pred = torch.randn(n, *extra, generator=rng, dtype=torch.float64) * 2
            return pred if logits else pred.sigmoid(), targets(n, *extra, high=2)
        if kind == "multilabel":
            pred = torch.randn(n, classes, *extra, generator=rng, dtype=torch.float64) * 2
            return pred if logits else pred.sigmoid(), targets(n, classes, *extra, high=2)
        return scores(rng, n, classes, *extra, logits=logits), targets(n, *extra, high=classes)

    def one(metric, name, kind, settings, args):
        prefix = {"binary": "Binary", "multiclass": "Multiclass", "multilabel": "Multilabel"}[kind]
        if kind == "multiclass":
            settings = {"num_classes": classes, **settings}
        elif kind == "multilabel":
            settings = {"num_labels": classes, **settings}
        if ignored is not None:
            settings = {"ignore_index": ignored, **settings}
        reference = getattr(tc, prefix + name)(validate_args=False, **settings)
        pred, target = data(kind)
        if logits:
            pred.view(-1)[-1] = -1.5  # torchmetrics takes scores from 0 to 1 for probabilities
        args = {"kind": kind, "logits": logits, "classes": classes, "ignored": ignored, **args}
        run(cases, metric, args, reference, pred, target)

    for kind in ["binary", "multiclass", "multilabel"]:
        average = pick.choice(list(AVERAGES))
        averaged = {} if kind == "binary" else {"average": AVERAGES[average]}
        args = {"average": average}
        k = top_k if kind == "multiclass" else 1
        with_k = {"top_k": k} if kind == "multiclass" else {}
        threshold = pick.choice([0.5, 0.3])
        thresholded = {} if kind == "multiclass" else {"threshold": threshold}
        args_t = {**args, "threshold": threshold, "top_k": k}
        for metric, name in [
            ("Accuracy", "Accuracy"),
            ("Precision", "Precision"),
            ("Recall", "Recall"),
            ("Specificity", "Specificity"),
        ]:
            one(metric, name, kind, {**averaged, **with_k, **thresholded}, args_t)
        beta = pick.choice([0.5, 1.0, 2.0])
        one("FBeta", "FBetaScore", kind, {"beta": beta, **averaged, **with_k, **thresholded}, {**args_t, "beta": beta})
        args_t["top_k"] = 1
        normalize = pick.choice([None, "true", "pred", "all"])
        one("ConfusionMatrix", "ConfusionMatrix", kind, {"normalize": normalize, **thresholded}, {**args_t, "normalize": normalize})
        one("Matthews", "MatthewsCorrCoef", kind, thresholded, args_t)
        one("Jaccard", "JaccardIndex", kind, {**averaged, **thresholded}, args_t)
        if kind != "multilabel":
            weights = pick.choice([None, "linear", "quadratic"])
            one("CohenKappa", "CohenKappa", kind, {"weights": weights, **thresholded}, {**args_t, "weights": weights})
            norm, bins = pick.choice(["l1", "l2", "max"]), pick.choice([5, 15])
            one("CalibrationError", "CalibrationError", kind, {"norm": norm, "n_bins": bins}, {"norm": norm, "bins": bins})
        if kind == "multiclass" and average == "micro":
            averaged, args = {"average": "macro"}, {"average": "macro"}
        for metric, name in [("Auroc", "AUROC"), ("AveragePrecision", "AveragePrecision")]:
            for thresholds in [None, pick.choice([5, 50])]:
                one(metric, name, kind, {"thresholds": thresholds, **averaged}, {**args, "thresholds": thresholds})


def regression(cases, rng, n, outputs, offset, constant=False):
    shape = [n, outputs] if outputs > 1 else [n]
    pred = torch.randn(*shape, generator=rng, dtype=torch.float64) + offset
    target = torch.full_like(pred, 2.0) if constant else pred * 0.7 + torch.randn(*shape, generator=rng, dtype=torch.float64)
    args = {}
    run(cases, "MeanSquaredError", args, tr.MeanSquaredError(), pred, target)
    run(cases, "MeanSquaredError", {"root": True}, tr.MeanSquaredError(squared=False), pred, target)
    run(cases, "MeanAbsoluteError", args, tr.MeanAbsoluteError(), pred, target)
    if n > 1:
        run(cases, "R2Score", args, tr.R2Score(), pred, target)
    run(cases, "ExplainedVariance", args, tr.ExplainedVariance(), pred, target)
    run(cases, "Pearson", args, tr.PearsonCorrCoef(num_outputs=outputs), pred, target)
    run(cases, "Spearman", args, tr.SpearmanCorrCoef(num_outputs=outputs), (pred * 4).round(), target)


WORDS = "the a cat dog sat on under mat tree small".split()


def text(cases, rng, pick, n):
    vocabulary = pick.randint(3, 8)
    ignored = pick.choice([None, -100])
    target = torch.randint(0, vocabulary, (n, 4), generator=rng)
    if ignored is not None:
        target = torch.where(torch.rand(n, 4, generator=rng) < 0.3, torch.tensor(ignored), target)
    logits = torch.randn(n, 4, vocabulary, generator=rng, dtype=torch.float64)
    run(cases, "Perplexity", {"ignored": ignored}, tt.Perplexity(ignore_index=ignored), logits, target)

    def sentence():
        return " ".join(pick.choice(WORDS) for _ in range(pick.randint(1, 9)))

    def changed(line):
        return " ".join(pick.choice(WORDS) if pick.random() < 0.2 else word for word in line.split())

    targets = [sentence() for _ in range(n)]
    preds = [changed(line) for line in targets]
    for metric, reference in [("WordErrorRate", tt.WordErrorRate()), ("CharErrorRate", tt.CharErrorRate())]:
        reference.update(preds, targets)
        cases.append({"metric": metric, "args": {}, "preds": preds, "targets": targets, "value": plain(reference.compute())})
    references = [[line, changed(line)][: pick.randint(1, 2)] for line in targets]
    for n_gram, smooth in [(4, False), (2, True)]:
        reference = tt.BLEUScore(n_gram=n_gram, smooth=smooth).set_dtype(torch.float64)
        reference.update(preds, references)
        args = {"n_gram": n_gram, "smooth": smooth}
        cases.append({"metric": "Bleu", "args": args, "preds": preds, "targets": references, "value": plain(reference.compute())})


def images(cases, rng, pick, n):
    classes = pick.randint(2, 4)
    for average, name in AVERAGES.items():
        background, level = pick.random() < 0.5 or classes == 2, pick.choice(["samplewise", "global"])
        logits = torch.randn(n, classes, 3, 4, generator=rng, dtype=torch.float64)
        target = torch.randint(0, pick.randint(1, classes), (n, 3, 4), generator=rng)
        reference = ts.DiceScore(classes, include_background=background, average=name, aggregation_level=level, input_format="mixed")
        args = {"classes": classes, "average": average, "background": background, "global": level == "global"}
        pred = tensor(logits)
        reference.update(back(pred), target)
        cases.append({"metric": "Dice", "args": args, "pred": pred, "target": tensor(target), "value": plain(reference.compute())})
    pred = torch.rand(min(n, 2), 2, 8, 9, generator=rng, dtype=torch.float64)
    target = (pred + 0.1 * torch.randn(pred.shape, generator=rng, dtype=torch.float64)).clamp(0, 1)
    run(cases, "Psnr", {"range": 1.0}, ti.PeakSignalNoiseRatio(data_range=1.0), pred, target)
    sigma = pick.choice([0.8, 1.5])
    run(cases, "Ssim", {"range": 1.0, "sigma": sigma}, ti.StructuralSimilarityIndexMeasure(data_range=1.0, sigma=sigma), pred, target)


def edge_cases(cases):
    """Cases in which a formula divides by 0, and other edge cases."""
    ones, zeros = torch.ones(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    half = torch.tensor([0.1, 0.9, 0.4, 0.6], dtype=torch.float64)
    high = torch.tensor([0.7, 0.9, 0.8, 0.6], dtype=torch.float64)
    low = torch.tensor([0.2, 0.1, 0.3, 0.4], dtype=torch.float64)
    equal = torch.full((4,), 0.5, dtype=torch.float64)
    mixed = torch.tensor([0, 1, 1, 0])
    binary = {"kind": "binary", "classes": 2, "ignored": None, "average": "macro", "threshold": 0.5, "top_k": 1}
    for pred in [half, high, low, equal]:
        for target in [ones, zeros, mixed]:
            for metric, name, settings, args in [
                ("Precision", "Precision", {}, {}),
                ("FBeta", "FBetaScore", {"beta": 1.0}, {"beta": 1.0}),
                ("Matthews", "MatthewsCorrCoef", {}, {}),
                ("CohenKappa", "CohenKappa", {}, {"weights": None}),
                ("Auroc", "AUROC", {}, {"thresholds": None}),
                ("Auroc", "AUROC", {"thresholds": 5}, {"thresholds": 5}),
                ("AveragePrecision", "AveragePrecision", {}, {"thresholds": None}),
                ("AveragePrecision", "AveragePrecision", {"thresholds": 5}, {"thresholds": 5}),
                ("CalibrationError", "CalibrationError", {"n_bins": 5}, {"bins": 5, "norm": "l1"}),
            ]:
                reference = getattr(tc, "Binary" + name)(validate_args=False, **settings)
                run(cases, metric, {**binary, **args}, reference, pred, target)
    certain = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 1, 1, 0])]
    for target in [zeros, mixed, torch.tensor([0, 2, 2, 0])]:
        for metric, name in [("Auroc", "AUROC"), ("AveragePrecision", "AveragePrecision"), ("Jaccard", "JaccardIndex"), ("Accuracy", "Accuracy")]:
            for average in ["macro", "weighted", "per_class"]:
                reference = getattr(tc, "Multiclass" + name)(num_classes=3, average=AVERAGES[average])
                args = {**binary, "kind": "multiclass", "classes": 3, "average": average, "thresholds": None}
                run(cases, metric, args, reference, certain, target)
    absent_class(cases)
    same = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for metric, reference in [
        ("R2Score", tr.R2Score()),
        ("ExplainedVariance", tr.ExplainedVariance()),
        ("Pearson", tr.PearsonCorrCoef()),
        ("Spearman", tr.SpearmanCorrCoef()),
    ]:
        run(cases, metric, {}, reference, same, same)
    nan = torch.tensor([1.0, math.nan], dtype=torch.float64)
    run(cases, "MeanSquaredError", {}, tr.MeanSquaredError(), nan, torch.zeros(2, dtype=torch.float64))
    image = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    run(cases, "Psnr", {"range": 1.0}, ti.PeakSignalNoiseRatio(data_range=1.0), image, image)
    empty = torch.zeros(2, 3, 3, dtype=torch.int64)
    for average in AVERAGES:
        reference = ts.DiceScore(3, average=AVERAGES[average], include_background=False, input_format="index")
        reference.update(empty, empty)
        args = {"classes": 3, "average": average, "background": False, "global": False}
        cases.append({"metric": "Dice", "args": args, "pred": tensor(empty), "target": tensor(empty), "value": plain(reference.compute())})


def absent_class(cases):
    """A class or a label that no target has, and one that is never predicted, for every metric of classification."""
    scores = torch.tensor(
        [[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1]], dtype=torch.float64
    )
    for kind, target in [("multiclass", torch.tensor([0, 0, 1, 1])), ("multilabel", torch.tensor([[1, 1, 0]] * 2 + [[0, 1, 0]] * 2))]:
        count = {"num_classes": 3} if kind == "multiclass" else {"num_labels": 3}
        for metric, name in [
            ("Accuracy", "Accuracy"),
            ("Precision", "Precision"),
            ("Recall", "Recall"),
            ("Specificity", "Specificity"),
            ("FBeta", "FBetaScore"),
            ("Jaccard", "JaccardIndex"),
            ("Auroc", "AUROC"),
            ("AveragePrecision", "AveragePrecision"),
            ("ConfusionMatrix", "ConfusionMatrix"),
            ("Matthews", "MatthewsCorrCoef"),
            ("CohenKappa", "CohenKappa"),
            ("CalibrationError", "CalibrationError"),
        ]:
            if kind == "multilabel" and metric in ["CohenKappa", "CalibrationError"]:
                continue
            has_average = metric not in ["ConfusionMatrix", "Matthews", "CohenKappa", "CalibrationError"]
            for average in ["macro", "weighted", "per_class"] if has_average else [None]:
                settings = {**count, **({"average": AVERAGES[average]} if has_average else {})}
                settings.update({"FBeta": {"beta": 1.0}, "CalibrationError": {"n_bins": 5}}.get(metric, {}))
                reference = getattr(tc, ("Multiclass" if kind == "multiclass" else "Multilabel") + name)(validate_args=False, **settings)
                args = {"kind": kind, "logits": False, "classes": 3, "ignored": None, "average": average or "macro", "threshold": 0.5, "top_k": 1}
                args.update({"beta": 1.0, "normalize": None, "weights": None, "bins": 5, "norm": "l1", "thresholds": None})
                run(cases, metric, args, reference, scores, target)


def cases(count, seed, small=False):
    """Random cases of every metric, in `count` rounds."""
    found, pick = [], random.Random(seed)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        n = pick.randint(2, 8 if small else 40)
        classification(found, rng, pick, n)
        regression(found, rng, n, pick.choice([1, 1, 3]), pick.choice([0.0, 100.0]))
        text(found, rng, pick, n)
        images(found, rng, pick, n)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = cases(3, seed=1, small=True)
    edge_cases(found)
    rng = torch.Generator().manual_seed(2)
    regression(found, rng, 4, 1, 0.0, constant=True)
    text_of = json.dumps({"torchmetrics": torchmetrics.__version__, "cases": found}, separators=(",", ":"))
    OUTPUT.write_text(text_of + "\n")
    print(f"{len(found)} cases, {len(text_of)} bytes", file=sys.stderr)
