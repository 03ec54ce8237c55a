//! Stochastic gradient descent.

use tch::Tensor;

use super::{Optimizer, ParamGroup};
use crate::error::Result;
use crate::libtorch::{self, TensorList};
use crate::vars::Vars;

/// Stochastic gradient descent, with momentum (Polyak 1964), Nesterov's variant (Sutskever et al.
/// 2013) and weight decay, by the formulas of `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd {
    lr: f64,
    momentum: f64,
    weight_decay: f64,
    nesterov: bool,
    groups: Vec<ParamGroup>,
    /// For each group, with momentum: a buffer for each parameter.
    momentum_buffers: Vec<TensorList>,
}

impl Sgd {
    /// Plain gradient descent with this learning rate.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Sgd {
            lr,
            momentum: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            groups: Vec::new(),
            momentum_buffers: Vec::new(),
        }
    }

    /// Momentum, 0 unless set.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// L2 penalty, added to the gradient; 0 unless set.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    /// Nesterov's momentum.
    #[must_use]
    pub fn nesterov(mut self, nesterov: bool) -> Self {
        self.nesterov = nesterov;
        self
    }
}

impl Optimizer for Sgd {
    fn bind(&mut self, vars: &Vars) -> Result<()> {
        super::check("lr", self.lr, 0.0..f64::INFINITY)?;
        super::check("momentum", self.momentum, 0.0..f64::INFINITY)?;
        super::check("weight_decay", self.weight_decay, 0.0..f64::INFINITY)?;
        if self.nesterov && self.momentum == 0.0 {
            return Err(crate::Error::usage(
                "Sgd: Nesterov's variant needs momentum: `.momentum(0.9).nesterov(true)`",
            ));
        }
        self.groups = ParamGroup::split(vars, self.lr, self.weight_decay);
        if self.momentum != 0.0 {
            self.momentum_buffers = self.groups.iter().map(ParamGroup::zeros_like).collect();
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let mut buffers = self.momentum_buffers.iter();
        for group in &self.groups {
            let settings = libtorch::Sgd {
                lr: group.lr,
                momentum: self.momentum,
                weight_decay: group.weight_decay,
                nesterov: self.nesterov,
            };
            libtorch::sgd(&group.parameters, buffers.next(), &settings)?;
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
        let groups = self.groups.iter().zip(&self.momentum_buffers);
        groups.flat_map(|(group, buffers)| group.named("momentum_buffer", buffers)).collect()
    }
}
