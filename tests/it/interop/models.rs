//! GPT-2, BERT, ViT and ResNet: logits, gradients and one training step match `transformers` and
//! torchvision, whose files are loaded as they are. The names of the published models are those in
//! `examples/models/names/`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use models::{
    BertClassifier, BertConfig, BertMaskedLm, Generate, Gpt2, Gpt2Config, ResNet, Vit, VitConfig, bert, loss,
};
use trainer::checkpoint::LoadWeights;
use trainer::data::from_fn;
use trainer::optim::Optimizer;
use trainer::prelude::*;

use super::run_script;
use crate::support::{distance, scratch};

/// The largest permitted difference from Python, relative to the largest magnitude of each tensor.
const TOLERANCE: f64 = 1e-5;

type Data = BTreeMap<String, Tensor>;
type Forward = Box<dyn Fn(&Data, bool) -> Tensor + Send>;

/// A model and its loss.
struct Compared {
    vars: nn::VarStore,
    forward: Forward,
    loss: fn(&Tensor, &Tensor) -> Tensor,
}

impl Compared {
    fn new(forward: impl FnOnce(&nn::Path<'_>) -> Forward, loss: fn(&Tensor, &Tensor) -> Tensor) -> Self {
        let vars = nn::VarStore::new(Device::Cpu);
        Compared { forward: forward(&vars.root()), vars, loss }
    }

    /// A classifier of images.
    fn images<N: nn::ModuleT + 'static>(build: impl FnOnce(&nn::Path<'_>) -> N) -> Self {
        let forward = |root: &nn::Path<'_>| {
            let net = build(root);
            Box::new(move |data: &Data, train| data["images"].apply_t(&net, train)) as Forward
        };
        Compared::new(forward, loss::cross_entropy)
    }
}

impl Task for Compared {
    type Batch = Data;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn pred(&mut self, data: &Data, mode: Mode) -> Result<Tensor> {
        Ok((self.forward)(data, mode == Mode::Train))
    }

    fn loss(&mut self, logits: &Tensor, data: &Data) -> Result<Tensor> {
        Ok((self.loss)(logits, &data["labels"]))
    }
}

fn read(path: &Path) -> Data {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// The largest difference of a comparison, and where it was.
#[derive(Default)]
struct Largest(f64, String);

impl Largest {
    fn compare(&mut self, what: String, ours: &Tensor, theirs: &Tensor) {
        assert_eq!(ours.size(), theirs.size(), "{what}");
        let difference = distance(ours, theirs) / theirs.abs().max().double_value(&[]).max(1e-5);
        assert!(difference <= TOLERANCE, "{what} differs by {difference:.1e}");
        if difference >= self.0 {
            *self = Largest(difference, what);
        }
    }
}

/// Loads the weights of a folder, compares logits, gradients and one step, and saves the weights.
fn compare(
    folder: &Path,
    task: Compared,
    optimizer: impl Optimizer + 'static,
    published: &LoadWeights<'_>,
) -> Trainer<Compared> {
    let data = read(&folder.join("data.safetensors"));
    let name = folder.file_name().unwrap().to_str().unwrap();
    let kept = Arc::new(Mutex::new(Data::new()));
    let grads = Arc::clone(&kept);
    let mut trainer = Trainer::builder(task)
        .optimizer(optimizer)
        .discover(Discover::None)
        .observe::<AfterBackward>("gradients", move |cx| {
            grads.lock().unwrap().extend(cx.grads().map(|(name, grad)| (name.to_string(), grad.copy())));
        })
        .build()
        .unwrap();
    let loaded = trainer.load_weights(folder.join("model.safetensors"), published).unwrap();
    assert_eq!((loaded.missing.len(), loaded.unexpected.len()), (0, 0), "{name}: {loaded}");

    let mut largest = Largest::default();
    let logits = tch::no_grad(|| (trainer.task().forward)(&data, false));
    largest.compare(format!("{name}: logits"), &logits, &data["logits"]);

    let batch = || data.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect::<Data>();
    let summary = trainer.fit(&mut from_fn(|_| [batch()]), None).unwrap();
    let loss = data["loss"].double_value(&[]);
    let difference = (summary.metrics["train/loss"] - loss).abs();
    assert!(difference <= TOLERANCE * loss, "{name}: the loss differs by {difference:.1e}");

    let theirs = read(&folder.join("grads.safetensors"));
    let ours = std::mem::take(&mut *kept.lock().unwrap());
    assert_eq!(ours.len(), trainer.task().vars().trainable_variables().len(), "{name}");
    for (variable, grad) in &ours {
        largest.compare(format!("{name}: gradient of {variable}"), grad, &theirs[variable]);
    }
    let (theirs, ours) = (read(&folder.join("after.safetensors")), trainer.task().vars().variables());
    for (variable, value) in &ours {
        largest.compare(format!("{name}: {variable} after a step"), value, &theirs[variable]);
    }
    println!(
        "{} variables, the largest difference from Python is {:.1e} ({})",
        ours.len(),
        largest.0,
        largest.1
    );
    let config = folder.join("config.json");
    if config.is_file() {
        let saved = folder.join("saved");
        std::fs::create_dir(&saved).unwrap();
        std::fs::copy(config, saved.join("config.json")).unwrap();
        trainer.save_weights(saved.join("model.safetensors")).unwrap();
    }
    trainer
}

fn adamw() -> AdamW {
    AdamW::new(1e-3).betas(0.9, 0.98).eps(1e-4).weight_decay(0.1)
}

fn bert_text(data: &Data) -> bert::Text {
    let tensor = |name: &str| data[name].shallow_clone();
    bert::Text { mask: Some(tensor("mask")), types: Some(tensor("types")), ..tensor("ids").into() }
}

#[test]
#[ignore = "run by `make interop`"]
fn models_match_those_of_transformers_and_torchvision() {
    let folder = scratch("interop-models");
    tch::set_num_threads(1);
    run_script("models.py", &folder);

    let path = folder.join("gpt2");
    let config = Gpt2Config::from_json(path.join("config.json")).unwrap();
    let forward = |root: &nn::Path<'_>| {
        let gpt2 = Gpt2::new(root, &config);
        Box::new(move |data: &Data, train| data["ids"].apply_t(&gpt2, train)) as Forward
    };
    let mut trainer = compare(&path, Compared::new(forward, loss::next_token), adamw(), &Gpt2::published());
    trainer.load_weights(path.join("model.safetensors"), &Gpt2::published()).unwrap();
    let mut vs = nn::VarStore::new(Device::Cpu);
    let gpt2 = Gpt2::new(&vs.root(), &config);
    vs.copy(trainer.task().vars()).unwrap();
    let data = read(&path.join("data.safetensors"));
    let ids = &data["ids"];
    let packed = gpt2.forward(ids, Some(&data["positions"]), Some(&data["mask"]), false);
    Largest::default().compare("gpt2: packed".to_owned(), &packed, &data["packed"]);
    let is_text = data["padding"].unsqueeze(-1); // what padding predicts is of no interest
    let padded = gpt2.forward(ids, None, Some(&data["padding"]), false) * &is_text;
    Largest::default().compare("gpt2: padded".to_owned(), &padded, &(&data["padded"] * is_text));
    let texts = gpt2.generate(&ids.slice(1, 0, 4, 1), &Generate::new(20)).unwrap();
    assert_eq!(Tensor::from_slice2(&texts), data["generated"], "greedy texts");

    let path = folder.join("bert_masked_lm");
    let config = BertConfig::from_json(path.join("config.json")).unwrap();
    let forward = |root: &nn::Path<'_>| {
        let bert = BertMaskedLm::new(root, &config);
        Box::new(move |data: &Data, train| bert.forward(&bert_text(data), train)) as Forward
    };
    compare(&path, Compared::new(forward, loss::cross_entropy), adamw(), &BertMaskedLm::published());

    let path = folder.join("bert_classifier");
    let config = BertConfig::from_json(path.join("config.json")).unwrap();
    assert_eq!(config.num_labels, 3);
    let forward = |root: &nn::Path<'_>| {
        let bert = BertClassifier::new(root, &config);
        Box::new(move |data: &Data, train| bert.forward(&bert_text(data), train)) as Forward
    };
    compare(&path, Compared::new(forward, loss::cross_entropy), adamw(), &BertClassifier::published());

    let path = folder.join("vit");
    let config = VitConfig::from_json(path.join("config.json")).unwrap();
    let task = Compared::images(|root| Vit::new(root, &config));
    compare(&path, task, adamw(), &Vit::published());

    type Build = fn(&nn::Path<'_>, i64) -> ResNet;
    let resnets: [(&str, Build); 3] =
        [("resnet18", ResNet::resnet18), ("resnet34", ResNet::resnet34), ("resnet50", ResNet::resnet50)];
    for (name, build) in resnets {
        let task = Compared::images(|root| build(root, 3));
        let sgd = Sgd::new(1e-3).momentum(0.9).weight_decay(1e-2);
        compare(&folder.join(name), task, sgd, &LoadWeights::new());
    }

    run_script("models_saved.py", &folder);

    let names = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/names");
    let mut files = 0;
    for file in std::fs::read_dir(&names).unwrap() {
        let name = file.unwrap().file_name();
        let [ours, theirs] = [&names, &folder.join("names")]
            .map(|folder| std::fs::read_to_string(folder.join(&name)).unwrap());
        assert_eq!(ours, theirs, "{}", name.display());
        files += 1;
    }
    assert_eq!(files, 7);
    std::fs::remove_dir_all(&folder).unwrap();
}
