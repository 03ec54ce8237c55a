//! LoRA adapters: `peft` reads what this crate writes, and this crate what `peft` writes; a step of
//! both gives the same adapters.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use trainer::TrainerBuilder;
use trainer::checkpoint::LoadWeights;
use trainer::hooks::Lora;
use trainer::modules::Name;
use trainer::prelude::*;

use super::run_script;
use crate::support::{distance, scratch};

/// The `Conv1D` of `transformers`, whose weight is `[in, out]`.
#[derive(Debug)]
struct Conv1D {
    name: Name,
    weight: Tensor,
    bias: Tensor,
}

impl nn::Module for Conv1D {
    fn forward(&self, xs: &Tensor) -> Tensor {
        self.name.run(xs, |xs| xs.matmul(&self.weight) + &self.bias)
    }
}

type Net = Supervised<nn::Sequential, fn(&Tensor, &Tensor) -> Tensor>;

/// Returns the network of `lora.py`.
fn task() -> Net {
    let vs = nn::VarStore::new(Device::Cpu);
    let lm = vs.root() / "lm";
    let path = &lm / 0;
    let linear = |path: nn::Path<'_>, inputs, outputs| {
        nn::linear(&path, inputs, outputs, Default::default()).named(&path)
    };
    let attention = &path / "c_attn";
    let attention = Conv1D {
        weight: attention.randn("weight", &[6, 5], 0.0, 0.3),
        bias: attention.randn("bias", &[5], 0.0, 0.1),
        name: attention.into(),
    };
    let net = nn::seq()
        .add(linear(&path / "q_proj", 4, 6))
        .add_fn(Tensor::tanh)
        .add(nn::layer_norm(&path / "norm", vec![6], Default::default()))
        .add(attention)
        .add_fn(Tensor::tanh)
        .add(linear(&lm / "head", 5, 3));
    Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels))
}

fn builder(lora: Lora) -> TrainerBuilder<Net> {
    let builder = Trainer::builder(task()).discover(Discover::None).seed(1);
    builder.optimizer(AdamW::new(0.05).weight_decay(0.01)).hook(lora).max_steps(2)
}

fn read(path: &Path) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

#[test]
#[ignore = "run by `make interop`"]
fn peft_and_this_crate_read_each_others_adapters_and_train_them_alike() {
    tch::set_num_threads(1);
    let folder = scratch("interop-lora");
    let data = || {
        let inputs = (Tensor::arange(24 * 4, (Kind::Float, Device::Cpu)) * 0.37).sin().view([24, 4]);
        InMemory::new((inputs, Tensor::arange(24, (Kind::Int64, Device::Cpu)).remainder(3)))
            .unwrap()
            .batch_size(24)
    };
    let (inputs, labels) = data().batches(0, 0).unwrap().next().unwrap().unwrap();
    Tensor::write_safetensors(&[("inputs", inputs), ("labels", labels)], folder.join("data.safetensors"))
        .unwrap();
    let weights = folder.join("weights.safetensors");
    Trainer::builder(task()).discover(Discover::None).build().unwrap().save_weights(&weights).unwrap();
    let start = |lora: Lora| {
        let mut trainer = builder(lora).build().unwrap();
        trainer.load_weights(&weights, &LoadWeights::new()).unwrap();
        trainer
    };
    let save = |trainer: &Trainer<Net>, name: &str| {
        trainer.hook::<Lora>().unwrap().save_peft(trainer.vars(), folder.join(name), "").unwrap();
    };
    let predictions = |trainer: &mut Trainer<Net>| Tensor::cat(&trainer.predict(&mut data()).unwrap(), 0);

    let lora =
        Lora::new(["*.q_proj", "*.c_attn"], 2).alpha(8.0).transposed("*.c_attn").trainable("lm.head.*");
    let mut trainer = start(lora);
    save(&trainer, "initial");
    trainer.fit(&mut data(), None).unwrap_or_else(|error| panic!("{error}"));
    save(&trainer, "ours");
    run_script("lora.py", &folder);

    let results = read(&folder.join("results.safetensors"));
    let ours = predictions(&mut trainer);
    let scale = ours.abs().max().double_value(&[]);
    for name in ["ours", "ours_merged", "theirs"] {
        assert!(
            distance(&ours, &results[name]) / scale < 2e-6,
            "{name}: {}",
            distance(&ours, &results[name])
        );
    }
    let [mine, theirs] =
        ["ours", "theirs"].map(|name| read(&folder.join(name).join("adapter_model.safetensors")));
    assert_eq!(mine.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, value) in &mine {
        println!("{name}: largest difference {:e}", distance(value, &theirs[name]));
        assert!(distance(value, &theirs[name]) < 2e-6, "{name}");
    }

    for name in ["theirs", "random"] {
        // The head of the folder stays, although the weights have another one.
        let mut trainer = start(Lora::from_peft(folder.join(name), "").unwrap());
        let own = predictions(&mut trainer);
        assert!(distance(&own, &results[name]) / scale < 2e-6, "{name}: {}", distance(&own, &results[name]));
    }
    let text = Lora::from_peft(folder.join("olora"), "").err().unwrap().to_string();
    assert!(
        text.contains("`init_lora_weights` is \"olora\"") && text.contains("`merge_and_unload()`"),
        "{text}"
    );
    let mut merged = Trainer::builder(task()).discover(Discover::None).build().unwrap();
    merged.load_weights(folder.join("merged.safetensors"), &LoadWeights::new()).unwrap();
    let own = predictions(&mut merged);
    // Merging rounds; without the change of the weights, the outputs would be another model's.
    assert!(distance(&own, &results["olora"]) < 1e-4, "{}", distance(&own, &results["olora"]));
    // The unit tests of `from_peft` decide about each field of this file.
    let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let known = parsed(include_str!("../../reference/peft_config.json"));
    let fields = parsed(&fs::read_to_string(folder.join("config.json")).unwrap());
    for (field, default) in fields.as_object().unwrap() {
        assert_eq!(
            known.get(field),
            Some(default),
            "`{field}` is new: add it to tests/reference/peft_config.json"
        );
    }
    let text = Lora::from_peft(folder.join("dora"), "").err().unwrap().to_string();
    assert!(text.contains("it has `use_dora` = true, which `Lora` does not support"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}
