//! Adam with decoupled weight decay.

use tch::{Kind, Tensor};

use super::{Optimizer, ParamGroup};
use crate::error::Result;
use crate::libtorch::{self, TensorList};
use crate::vars::Vars;

/// Adam with decoupled weight decay (Loshchilov and Hutter, *Decoupled Weight Decay
/// Regularization*, 2019), by the formulas of `torch.optim.AdamW`.
#[derive(Debug)]
pub struct AdamW {
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    groups: Vec<ParamGroup>,
    moments: Vec<Moments>,
}

/// The state of one group.
#[derive(Debug)]
struct Moments {
    exp_avg: TensorList,
    exp_avg_sq: TensorList,
    step: TensorList,
}

impl AdamW {
    /// With this learning rate, betas of 0.9 and 0.999, eps of 1e-8 and weight decay of 0.01.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        AdamW {
            lr,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.01,
            groups: Vec::new(),
            moments: Vec::new(),
        }
    }

    /// The decay rates of the running mean and of the running mean square.
    #[must_use]
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Self {
        self.betas = (beta1, beta2);
        self
    }

    /// Added to the denominator.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Decoupled weight decay.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = weight_decay;
        self
    }
}

impl Optimizer for AdamW {
    fn bind(&mut self, vars: &Vars) -> Result<()> {
        super::check("lr", self.lr, 0.0..f64::INFINITY)?;
        super::check("beta1", self.betas.0, 0.0..1.0)?;
        super::check("beta2", self.betas.1, 0.0..1.0)?;
        super::check("eps", self.eps, 0.0..f64::INFINITY)?;
        super::check("weight_decay", self.weight_decay, 0.0..f64::INFINITY)?;
        self.groups = ParamGroup::split(vars, self.lr, self.weight_decay);
        let moments = |group: &ParamGroup| Moments {
            exp_avg: group.zeros_like(),
            exp_avg_sq: group.zeros_like(),
            step: group.parameters.iter().map(|it| Tensor::zeros([], (Kind::Float, it.device()))).collect(),
        };
        self.moments = self.groups.iter().map(moments).collect();
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        for (group, moments) in self.groups.iter().zip(&self.moments) {
            let settings = libtorch::AdamW {
                lr: group.lr,
                betas: self.betas,
                weight_decay: group.weight_decay,
                eps: self.eps,
            };
            libtorch::adamw(
                &group.parameters,
                &moments.exp_avg,
                &moments.exp_avg_sq,
                &moments.step,
                &settings,
            )?;
        }
        Ok(())
    }

    fn zero_grad(&mut self) -> Result<()> {
        self.groups.iter().try_for_each(|group| libtorch::drop_grads(&group.parameters))
    }

    fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    fn groups_mut(&mut self) -> &mut [ParamGroup] {
        &mut self.groups
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let named = |(group, moments): (&ParamGroup, &Moments)| {
            let first = group.named("exp_avg", &moments.exp_avg);
            let second = group.named("exp_avg_sq", &moments.exp_avg_sq);
            first.chain(second).chain(group.named("step", &moments.step)).collect::<Vec<_>>()
        };
        self.groups.iter().zip(&self.moments).flat_map(named).collect()
    }
}
