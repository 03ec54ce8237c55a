//! The implementation shared by all built-in optimizers.

use super::ParamGroup;
use super::algorithm::{Algorithm, SHARED};
use super::group::{self, Group};
use crate::error::{Error, Result};
use crate::model::vars::Vars;

/// An algorithm with its settings and, once bound, the parameter groups that it updates.
#[derive(Debug)]
pub(super) struct OptimizerCore {
    pub(super) algorithm: &'static Algorithm,
    pub(super) lr: f64,
    pub(super) weight_decay: f64,
    /// The values of the algorithm's settings, in the order of [`Algorithm::settings`].
    pub(super) values: Vec<f64>,
    /// The groups defined by patterns. A parameter belongs to the group of the first matching
    /// pattern.
    pub(super) groups_by: Vec<(String, Group)>,
    pub(super) groups: Vec<ParamGroup>,
    /// The decay factors of layer-wise learning rates.
    decays: Vec<f64>,
    /// The names of settings that the algorithm does not have.
    unknown: Vec<String>,
}

impl OptimizerCore {
    pub(super) fn new(algorithm: &'static Algorithm, lr: f64, weight_decay: f64) -> Self {
        let values = algorithm.settings.iter().map(|setting| setting.default).collect();
        OptimizerCore {
            algorithm,
            lr,
            weight_decay,
            values,
            groups_by: Vec::new(),
            groups: Vec::new(),
            decays: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Sets one of the algorithm's settings. [`check`](OptimizerCore::check) reports an unknown
    /// name.
    pub(super) fn with(mut self, name: &str, value: f64) -> Self {
        match self.algorithm.index_of(name) {
            Ok(nth) => self.values[nth] = value,
            Err(_) => self.unknown.push(name.to_owned()),
        }
        self
    }

    /// Sets a boolean setting.
    pub(super) fn with_flag(self, name: &str, value: bool) -> Self {
        self.with(name, f64::from(u8::from(value)))
    }

    /// Adds a group for each layer, with a learning rate that decays from the last layer to the
    /// first. An invalid `decay` adds no groups; [`check`](OptimizerCore::check) reports it.
    pub(super) fn add_layers(&mut self, decay: f64, layers: Vec<String>) {
        self.decays.push(decay);
        if decay > 0.0 && decay.is_finite() {
            let depths = (0..layers.len()).rev();
            self.groups_by.extend(layers.into_iter().zip(depths).map(|(pattern, depth)| {
                (pattern, Group::new().lr(self.lr * decay.powi(i32::try_from(depth).unwrap_or(i32::MAX))))
            }));
        }
    }

    /// Returns an error for every invalid setting.
    pub(super) fn check(&self) -> impl Iterator<Item = Error> {
        let decays = self.decays.iter().filter(|decay| !(**decay > 0.0 && decay.is_finite())).map(|decay| {
            Error::usage(format!(
                "`.layer_decay({decay:?}, …)`: expected a finite factor above 0, such as 0.8"
            ))
        });
        let shared = SHARED.iter().zip([self.lr, self.weight_decay]);
        let own = self.algorithm.settings.iter().zip(self.values.iter().copied());
        let unknown = self.unknown.iter().map(|name| self.algorithm.has_no(name));
        shared
            .chain(own)
            .filter_map(|(setting, value)| setting.check(value).err())
            .chain(decays)
            .chain(unknown)
    }

    pub(super) fn bind(&mut self, vars: &Vars, is_own: &dyn Fn(&str) -> bool) -> Result<()> {
        self.groups = group::bind(self, vars, is_own)?;
        Ok(())
    }
}

/// Implements what every optimizer built on an [`OptimizerCore`] has in common.
macro_rules! optimizer {
    ($name:ident, $weight_decay:literal) => {
        impl $name {
            #[doc = $weight_decay]
            #[must_use]
            pub fn weight_decay(mut self, weight_decay: f64) -> Self {
                self.0.weight_decay = weight_decay;
                self
            }

            /// Adds a parameter group: the parameters whose names match a pattern, in which `*`
            /// matches any characters, dots included, and `?` matches exactly one.
            ///
            /// The group is updated with its own settings, is
            /// [frozen](crate::optim::Group::frozen), or is updated by a different optimizer, as
            /// with `.group("*.bias", AdamW::new(1e-3))`. If several patterns match a name, the
            /// first wins. Parameters that `nn::Path::set_group` separates stay in separate groups.
            ///
            /// A group without any parameter is an error when the trainer is built. If a hook is
            /// registered at `setup`, where it may add layers, such a group is an error at the end
            /// of the first `setup` instead.
            #[must_use]
            pub fn group(
                mut self,
                pattern: impl Into<String>,
                group: impl Into<crate::optim::Group>,
            ) -> Self {
                self.0.groups_by.push((pattern.into(), group.into()));
                self
            }
        }

        impl $name {
            /// Adds a parameter group for each layer. `layers` contains a pattern for each layer,
            /// from the first layer to the last. The last layer has the learning rate of the
            /// optimizer, and every other layer has the learning rate of the next layer times
            /// `decay`. Building the trainer fails unless `decay` is finite and above 0.
            ///
            /// To spread the rates between two values, as with `slice` in fastai, use the decay
            /// `(first / last).powf(1.0 / (layers - 1))`. Groups that were added earlier take
            /// precedence, as with [`group`](Self::group).
            #[must_use]
            pub fn layer_decay(
                mut self,
                decay: f64,
                layers: impl IntoIterator<Item = impl Into<String>>,
            ) -> Self {
                self.0.add_layers(decay, layers.into_iter().map(Into::into).collect());
                self
            }
        }

        impl From<$name> for crate::optim::Group {
            fn from(optimizer: $name) -> Self {
                crate::optim::Group::with_optimizer(optimizer.0)
            }
        }

        impl crate::optim::Optimizer for $name {
            fn bind(&mut self, vars: &crate::Vars) -> crate::Result<()> {
                self.0.bind(vars, &|_| true)
            }

            fn bind_share(&mut self, vars: &crate::Vars, is_own: &dyn Fn(&str) -> bool) -> crate::Result<()> {
                self.0.bind(vars, is_own)
            }

            fn step(&mut self) -> crate::Result<()> {
                self.0.groups.iter().try_for_each(crate::optim::ParamGroup::step)
            }

            fn zero_grad(&mut self) -> crate::Result<()> {
                self.0.groups.iter().try_for_each(crate::optim::ParamGroup::drop_grads)
            }

            fn groups(&self) -> &[crate::optim::ParamGroup] {
                &self.0.groups
            }

            fn groups_mut(&mut self) -> &mut [crate::optim::ParamGroup] {
                &mut self.0.groups
            }

            fn state(&self) -> Vec<(String, tch::Tensor)> {
                self.0.groups.iter().flat_map(crate::optim::ParamGroup::state).collect()
            }

            fn load_state(&mut self, state: &[(String, tch::Tensor)]) -> crate::Result<()> {
                self.0.groups.iter_mut().try_for_each(|group| group.create_state_for(state))?;
                let groups = self.0.groups.iter();
                let mistakes = groups.flat_map(|group| group.impossible_counts(state)).collect();
                crate::optim::copy_state(&self.state(), state, mistakes)
            }
        }
    };
}
pub(super) use optimizer;
