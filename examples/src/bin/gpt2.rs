//! Trains a small GPT-2 on sonnets, then fine-tunes it with LoRA to answer a line with the next.
//!
//! The folders of both runs are in `runs/gpt2`, and interrupted runs resume. `gpt2 --weights DIR`
//! instead fine-tunes a published model, such as `openai-community/gpt2`, whose `config.json` and
//! `model.safetensors` are in the folder `DIR`. Tokens are bytes, with the same IDs as in GPT-2.

use std::path::{Path, PathBuf};

use examples::text;
use models::{Files, Generate, Gpt2, Gpt2Config, Sampling};
use trainer::data::{IGNORED, NamedLoaders, Sequence, Sequences};
use trainer::hooks::{Amp, Checkpoint, HyperparameterSchedule, Lora, Progress};
use trainer::losses::Head;
use trainer::metrics::Perplexity;
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::{MetricInputs, TrainerBuilder};

struct Lm {
    vars: nn::VarStore,
    gpt2: Gpt2,
}

impl Lm {
    fn new(config: &Gpt2Config) -> Self {
        let vars = nn::VarStore::new(Device::Cpu);
        Lm { gpt2: Gpt2::new(&vars.root(), config), vars }
    }
}

impl Task for Lm {
    type Batch = Sequences;
    type Pred = Head;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, batch: &Sequences, mode: Mode) -> Result<Head> {
        let mask = batch.mask();
        Ok(self.gpt2.head(&batch.tokens, Some(&batch.positions), Some(&mask), mode == Mode::Train))
    }
    fn loss(&mut self, head: &Head, batch: &Sequences) -> Result<Tensor> {
        head.cross_entropy(&batch.targets)
    }
    fn weight(&self, batch: &Sequences) -> f64 {
        batch.weight()
    }
    fn metric_inputs(&self) -> Option<MetricInputs<Self>> {
        Some(|_, batch, head| Some((head.token_losses()?, batch.targets.shallow_clone())))
    }
}

/// Returns a builder with the settings that both runs share.
fn builder(config: &Gpt2Config, lr: f64, steps: u64, folder: &Path) -> TrainerBuilder<Lm> {
    Trainer::builder(Lm::new(config))
        .optimizer(AdamW::new(lr).weight_decay(0.1))
        .max_steps(steps)
        .auto_device()
        .seed(1) // for dropout and the adapters
        .clip_grad_norm(1.0)
        .run_folder(folder)
        .resume(Resume::Auto)
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(0.1)))
        .hook(Amp::bf16())
        .hook(Perplexity::new().of_token_losses().ignore_index(IGNORED))
        .hook(Checkpoint::in_run_folder())
        .hook(Progress::new())
}

fn main() -> Result<()> {
    tch::manual_seed(1); // for the initial weights
    let folder = Path::new("runs/gpt2");
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let published = match &arguments[..] {
        [] => None,
        [option, folder] if option == "--weights" => Some(Files::in_folder(PathBuf::from(folder))?),
        _ => {
            return Err(Error::msg(format!(
                "the arguments are {arguments:?}: expected none, or `--weights DIR`"
            )));
        }
    };
    let config = match &published {
        Some(files) => Gpt2Config::from_json(&files.config)?,
        None => Gpt2Config {
            vocab_size: 256,
            n_positions: 256,
            n_embd: 96,
            n_layer: 3,
            n_head: 4,
            ..Gpt2Config::small()
        },
    };
    let packed = |texts: Vec<Sequence>| DataLoader::new(texts).batch_size(4).shuffle(1).pack(256);
    let valid = || {
        let loaders = NamedLoaders::new().add("sonnets", packed(text::sonnets().1));
        loaders.add("answers", packed(text::answers().1))
    };

    let weights = match published {
        Some(files) => files.weights,
        None => {
            let mut trainer = builder(&config, 2e-3, 200, &folder.join("pretrained")).build()?;
            trainer.fit(&mut packed(text::sonnets().0), Some(&mut valid()))?;
            trainer.save_weights(folder.join("pretrained.safetensors"))?;
            folder.join("pretrained.safetensors")
        }
    };

    let adapters = Lora::new("*.c_attn", 8).alpha(16.0).dropout(0.05).transposed("*.c_attn");
    let mut trainer = builder(&config, 1e-3, 60, &folder.join("answers")).hook(adapters).build()?;
    trainer.load_weights(weights, &Gpt2::published())?;
    trainer.fit(&mut packed(text::answers().0), Some(&mut valid()))?;
    let (vars, lora) = (trainer.vars(), trainer.hook::<Lora>()?);
    lora.save_peft(vars, folder.join("adapters"), "")?;

    // Outside of a run, no hooks are active, so the adapters are merged into the weights.
    lora.merge(vars)?;
    let line = "Shall I compare thee to a summer's day?";
    let prompt = Tensor::from_slice(&text::prompt(line)).unsqueeze(0);
    let sampling = Sampling::new(1).temperature(0.7).top_p(0.9);
    let answers = trainer.task().gpt2.generate(&prompt, &Generate::new(60).sample(sampling))?;
    println!("{line}\n{}", text::line_of(&answers[0]));
    Ok(())
}
