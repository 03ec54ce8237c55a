//! The rows of the page about PyTorch.

use trainer::hooks::{Ema, HyperparameterSchedule, LabelSmoothing, ReduceOnPlateau, Swa};
use trainer::optim::{Adagrad, Adam, Group, Muon, RmsProp};
use trainer::prelude::*;
use trainer::schedule::{
    Constant, Cosine, CosineRestarts, Exponential, Linear, MultiStep, OneCycle, Polynomial, StepDecay,
};

use super::program::*;
use super::{Case, Series, written};

pub(super) const CASES: &[Case] = &[
    Case::new("nn.Linear(n, m)", || {
        initial(|path| {
            let layer = nn::linear(path, 40, 20, nn::LinearConfig::default());
            vec![("weight", layer.ws), ("bias", layer.bs.unwrap())]
        })
    })
    .advised(|| {
        initial(|path| {
            // PyTorch draws the weight first.
            let uniform = uniform(40);
            vec![
                ("weight", path.var("weight", &[20, 40], uniform)),
                ("bias", path.var("bias", &[20], uniform)),
            ]
        })
    }),
    Case::new("nn.Conv2d(n, m, k)", || {
        initial(|path| {
            let layer = nn::conv2d(path, 3, 8, 5, nn::ConvConfig::default());
            vec![("weight", layer.ws), ("bias", layer.bs.unwrap())]
        })
    })
    .advised(|| {
        initial(|path| {
            let uniform = uniform(3 * 5 * 5);
            let weight = path.var("weight", &[8, 3, 5, 5], uniform);
            vec![("weight", weight), ("bias", path.var("bias", &[8], uniform))]
        })
    }),
    Case::new("nn.BatchNorm1d(n)", || batch_norm_weights(nn::BatchNormConfig::default())).advised(|| {
        batch_norm_weights(nn::BatchNormConfig { ws_init: nn::Init::Const(1.0), ..Default::default() })
    }),
    Case::new("nn.LayerNorm(n)", || {
        initial(|path| {
            let norm = nn::layer_norm(path, vec![20], nn::LayerNormConfig::default());
            vec![("weight", norm.ws.unwrap()), ("bias", norm.bs.unwrap())]
        })
    }),
    Case::new("nn.Embedding(n, m)", || {
        initial(|path| vec![("weight", nn::embedding(path, 10, 4, nn::EmbeddingConfig::default()).ws)])
    }),
    Case::new("nn.LSTM(n, m)", || lstm_weights(nn::RNNConfig::default())).advised(|| {
        let uniform = uniform(16);
        lstm_weights(nn::RNNConfig {
            w_ih_init: uniform,
            w_hh_init: uniform,
            b_ih_init: Some(uniform),
            b_hh_init: Some(uniform),
            ..Default::default()
        })
    }),
    Case::new("nn.LSTM(…, dropout=p)", || lstm_differs(true)).advised(|| lstm_differs(false)),
    Case::new("SGD(lr)", || Program::new(sgd(), |b| b).fit()),
    Case::new("SGD(momentum=x, nesterov=True, weight_decay=x)", || {
        Program::new(sgd().momentum(0.9).nesterov(true).weight_decay(0.1), |b| b).fit()
    }),
    Case::new("Adam(lr)", || Program::new(Adam::new(0.01), |b| b).fit()),
    Case::new("Adam(weight_decay=x)", || Program::new(Adam::new(0.01).weight_decay(0.1), |b| b).fit()),
    Case::new("AdamW(lr)", || Program::new(AdamW::new(0.01), |b| b).fit()),
    Case::new("RMSprop(lr)", || Program::new(RmsProp::new(0.01), |b| b).fit()),
    Case::new("Adagrad(lr)", || Program::new(Adagrad::new(0.01), |b| b).fit()),
    Case::new("clip_grad_norm_(…, x)", || Program::new(sgd(), |b| b.clip_grad_norm(0.05)).fit()),
    Case::new("clip_grad_value_(…, x)", || Program::new(sgd(), |b| b.clip_grad_value(0.05)).fit()),
    Case::new("if (i + 1) % n == 0", || Program::new(sgd(), |b| b.accumulate(2)).fit()),
    Case::new("StepLR(n, gamma)", || scheduled(sgd(), StepDecay::new(3, 0.5))),
    Case::new("MultiStepLR(milestones, gamma)", || scheduled(sgd(), MultiStep::new([3, 6], 0.5))),
    Case::new("ExponentialLR(gamma)", || scheduled(sgd(), Exponential::new(0.8))),
    Case::new("CosineAnnealingLR(T_max)", || scheduled(sgd(), Cosine::to(0.0).over(5)))
        .advised(|| scheduled(sgd(), Cosine::to(0.0).over(10))),
    Case::new("CosineAnnealingWarmRestarts(T_0)", || scheduled(sgd(), CosineRestarts::every(4))),
    Case::new("LinearLR()", || scheduled(sgd(), Linear::to(1.0)))
        .advised(|| scheduled(sgd(), Linear::to(1.0).starting_at(1.0 / 3.0).over(5))),
    Case::new("PolynomialLR(n, power)", || scheduled(sgd(), Polynomial::new(2.0))),
    Case::new("OneCycleLR(max_lr, total_steps)", || one_cycle(false)).advised(|| one_cycle(true)),
    Case::new("SequentialLR([LinearLR, CosineAnnealingLR])", || scheduled(sgd(), Cosine::to(0.0).warm_up(3))),
    Case::new("SequentialLR([…, OneCycleLR])", || {
        scheduled(sgd(), Constant::new(1.0).then(3, OneCycle::new().over(8)))
    })
    .advised(|| {
        let before = Constant::new(1.0 / 25.0);
        scheduled(sgd(), before.then(3, OneCycle::new().over(8)))
    }),
    Case::new("ReduceLROnPlateau(patience=n)", || {
        let plateau = ReduceOnPlateau::new("valid/scripted", Goal::Minimize).factor(0.5).patience(2);
        Program::new(sgd(), |b| b.epochs(12).hook(plateau)).fit_valid()
    }),
    Case::new("AveragedModel(…)", || {
        let mut program = Program::new(sgd(), |b| b.epochs(4).hook(Swa::from_epoch(2)));
        program.fit_on(train_rows(), None);
        let average = flat(program.trainer.hook::<Swa>().unwrap().average());
        with(program.seen(), "average", average)
    }),
    Case::new("AveragedModel(…, multi_avg_fn=get_ema_multi_avg_fn(x))", || {
        let mut program = Program::new(sgd(), |b| b.hook(Ema::new(0.9)));
        program.fit_on(train_rows(), None);
        let average = flat(program.trainer.hook::<Ema>().unwrap().average());
        with(program.seen(), "average", average)
    }),
    Case::new("update_bn(…)", || batch_norm_updated(3, 1)),
    Case::new("F.cross_entropy(…, weight=w, label_smoothing=x)", || classified(0.0, true))
        .advised(|| classified(0.2, false)),
    Case::new("torch.manual_seed(n)", random_numbers),
    Case::new("optimizer.state_dict()", || {
        let runs = [
            state_of("AdamW", Program::new(AdamW::new(0.01).weight_decay(0.1), |b| b), &NAMES),
            state_of("distributed", Program::new(AdamW::new(0.01).weight_decay(0.1), |b| b), &[]),
            state_of("Adam", Program::new(Adam::new(0.01).amsgrad(true), |b| b), &NAMES),
            state_of("SGD", Program::new(Sgd::new(0.1).momentum(0.9).dampening(0.1), |b| b), &NAMES),
            state_of("RMSprop", Program::new(RmsProp::new(0.01).momentum(0.5).centered(true), |b| b), &NAMES),
            state_of("Adagrad", Program::new(Adagrad::new(0.05).lr_decay(0.1), |b| b), &NAMES),
            muon(),
        ];
        runs.into_iter().reduce(both).unwrap()
    }),
    Case::new("CosineLRScheduler(t_initial=10, lr_min=0.01)", || fourteen(&Cosine::to(0.1).over(10))),
    Case::new("CosineLRScheduler(…, warmup_t=3, warmup_lr_init=0.001, warmup_prefix=True)", || {
        fourteen(&Cosine::to(0.1).over(10).warm_up(3).starting_at(0.01))
    }),
    Case::new("CosineLRScheduler(…, warmup_t=3, warmup_lr_init=0.001)", || {
        fourteen(&Cosine::to(0.1).over(10).warm_up(3).starting_at(0.01))
    })
    .advised(|| {
        fourteen(&|step: u64| match step {
            0..3 => 0.01 + 0.33 * step as f64,
            step => Cosine::to(0.1).over(10).factor(step, None).unwrap(),
        })
    }),
    Case::new("CosineLRScheduler(…, k_decay=2.0)", || fourteen(&Cosine::to(0.1).over(10))).advised(|| {
        fourteen(&|step: u64| {
            let done = (step as f64 / 10.0).min(1.0);
            0.1 + 0.45 * (1.0 + (std::f64::consts::PI * done * done).cos())
        })
    }),
    Case::new("SWALR(optimizer, swa_lr=0.01, anneal_epochs=5)", || fourteen(&Cosine::to(0.1).over(5))),
];

/// PyTorch's initial weights of a layer whose outputs depend on `inputs` numbers.
fn uniform(inputs: i64) -> nn::Init {
    let bound = 1.0 / (inputs as f64).sqrt();
    nn::Init::Uniform { lo: -bound, up: bound }
}

/// Returns the initial values of variables, drawn after `tch::manual_seed(5)`.
fn initial(make: fn(nn::Path<'_>) -> Vec<(&'static str, Tensor)>) -> Series {
    let vars = nn::VarStore::new(Device::Cpu);
    tch::manual_seed(5);
    make(vars.root()).into_iter().map(|(name, tensor)| (name, numbers(&tensor))).collect()
}

fn batch_norm_weights(config: nn::BatchNormConfig) -> Series {
    let vars = nn::VarStore::new(Device::Cpu);
    tch::manual_seed(5);
    let norm = nn::batch_norm1d(vars.root(), 20, config);
    [("weight", numbers(&norm.ws.unwrap())), ("bias", numbers(&norm.bs.unwrap()))].into()
}

fn lstm_weights(config: nn::RNNConfig) -> Series {
    let vars = nn::VarStore::new(Device::Cpu);
    tch::manual_seed(5);
    let _lstm = nn::lstm(vars.root(), 6, 16, config);
    let found = vars.variables();
    let names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
    names.into_iter().map(|name| (name, numbers(&found[&format!("{name}_l0")]))).collect()
}

/// Whether two evaluations of an LSTM with dropout differ.
fn lstm_differs(train: bool) -> Series {
    let vars = nn::VarStore::new(Device::Cpu);
    let config = nn::RNNConfig { num_layers: 2, dropout: 0.5, train, ..Default::default() };
    let lstm = nn::lstm(vars.root(), 3, 4, config);
    let x = rows(0, 20).0.to_kind(Kind::Float).unsqueeze(0);
    let [first, second] = [0, 1].map(|_| nn::RNN::seq(&lstm, &x).0);
    let differs = (first - second).abs().max().double_value(&[]) > 0.0;
    [("differs", vec![f64::from(u8::from(differs))])].into()
}

fn one_cycle(with_momentum: bool) -> Series {
    let cycle = OneCycle::new().over(11);
    Program::new(sgd().momentum(0.9), |b| {
        let b = b.hook(HyperparameterSchedule::lr(cycle));
        if with_momentum { b.hook(HyperparameterSchedule::momentum(cycle.momentum(0.85, 0.95))) } else { b }
    })
    .fit()
}

/// Trains with class weights, and with a smoothing in the loss or by the hook.
fn classified(smoothing: f64, by_hook: bool) -> Series {
    fn loss(logits: &Tensor, y: &Tensor, smoothing: f64) -> Tensor {
        let weights = Some(Tensor::from_slice(&[1.0_f64, 5.0, 2.0]));
        logits.cross_entropy_loss(y, weights, Reduction::Mean, -100, smoothing)
    }
    let of: LossFn =
        if smoothing > 0.0 { |logits, y| loss(logits, y, 0.2) } else { |logits, y| loss(logits, y, 0.0) };
    let mut program = Program::of(model(no_norm, 3, of), sgd(), |b| {
        if by_hook { b.hook(LabelSmoothing::new(0.2).classes(3)) } else { b }
    });
    program.fit_on(loader(labeled(0, 20), 4), None);
    program.seen()
}

/// Continues a run of a loop that PyTorch began.
fn state_of(name: &str, program: Program, names: &[&str]) -> Series {
    let file = &*written(&format!("{name}.pt"));
    continued(program, "", (file, &["model"]), (file, &["optimizer"]), names)
}

/// Continues a run in which the biases were frozen.
fn muon() -> Series {
    let biases = Group::from(AdamW::new(0.01)).frozen(true);
    let program = Program::new(Muon::new(0.01).group("*.bias", biases), |b| b);
    let mut seen = state_of("Muon", program, &["fc1.weight", "fc2.weight"]);
    // One rate for each of the two groups.
    seen.insert("rates", seen["rates"].iter().step_by(2).copied().collect());
    seen
}

/// Returns the first rates of a schedule.
fn fourteen(schedule: &impl Schedule) -> Series {
    let rates = (0..14).map(|step| 0.1 * schedule.factor(step, None).unwrap()).collect();
    with(Series::new(), "rates", rates)
}
