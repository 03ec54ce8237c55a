//! Training methods: hooks that change the data, the gradients or the weights of a training step.

mod cut_mix;
mod distillation;
mod gradient_noise;
mod label_smoothing;
mod lookahead;
mod mix_up;
mod sam;
mod samples;

pub use cut_mix::CutMix;
pub use distillation::Distillation;
pub use gradient_noise::GradientNoise;
pub use label_smoothing::LabelSmoothing;
pub use lookahead::Lookahead;
pub use mix_up::MixUp;
pub use sam::Sam;
