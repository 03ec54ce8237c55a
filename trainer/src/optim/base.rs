//! What all optimizers here are made of.

use super::ParamGroup;
use super::group::{self, Group};
use super::rule::{Rule, SHARED};
use crate::error::{Error, Result};
use crate::vars::Vars;

/// A rule with its settings, and once it is bound the groups of parameters that it updates.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) rule: &'static Rule,
    pub(super) lr: f64,
    pub(super) weight_decay: f64,
    /// Beside each of the rule's settings.
    pub(super) values: Vec<f64>,
    /// The groups that patterns make; the first that matches has a parameter.
    pub(super) groups_by: Vec<(String, Group)>,
    pub(super) groups: Vec<ParamGroup>,
}

impl Base {
    pub(super) fn new(rule: &'static Rule, lr: f64, weight_decay: f64) -> Self {
        let values = rule.settings.iter().map(|setting| setting.default).collect();
        Base { rule, lr, weight_decay, values, groups_by: Vec::new(), groups: Vec::new() }
    }

    /// With this value of one of the rule's settings.
    pub(super) fn with(mut self, name: &str, value: f64) -> Self {
        let nth = self.rule.index_of(name).expect("a rule is written beside the methods that set it");
        self.values[nth] = value;
        self
    }

    /// With one that is either so or not.
    pub(super) fn with_flag(self, name: &str, value: bool) -> Self {
        self.with(name, f64::from(u8::from(value)))
    }

    /// What is wrong with its settings, all of it.
    pub(super) fn check(&self) -> impl Iterator<Item = Error> {
        let shared = SHARED.iter().zip([self.lr, self.weight_decay]);
        let own = self.rule.settings.iter().zip(self.values.iter().copied());
        shared.chain(own).filter_map(|(setting, value)| setting.check(value).err())
    }

    pub(super) fn bind(&mut self, vars: &Vars) -> Result<()> {
        self.groups = group::bind(self, vars)?;
        Ok(())
    }
}

/// The methods that every optimizer made of a [`Base`] has.
macro_rules! optimizer {
    ($name:ident, $weight_decay:literal) => {
        impl $name {
            #[doc = $weight_decay]
            #[must_use]
            pub fn weight_decay(mut self, weight_decay: f64) -> Self {
                self.0.weight_decay = weight_decay;
                self
            }

            /// A group of the parameters whose names match a pattern, in which `*` is any characters, dots too, and `?` is one.
            /// It is updated with settings of its own, is [frozen](crate::optim::Group::frozen), or belongs to another
            /// optimizer, `.group("*.bias", AdamW::new(1e-3))`. Of patterns that match the same name, the first has it. What
            /// `nn::Path::set_group` set apart stays apart.
            ///
            /// A pattern that is left with no parameter is an error when the trainer is built; if a hook stands at `setup`, where it
            /// may add layers, at the end of the first `setup`.
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

        impl From<$name> for crate::optim::Group {
            fn from(optimizer: $name) -> Self {
                crate::optim::Group::by(optimizer.0)
            }
        }

        impl crate::optim::Optimizer for $name {
            fn bind(&mut self, vars: &crate::Vars) -> crate::Result<()> {
                self.0.bind(vars)
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
                self.0.groups.iter_mut().try_for_each(|group| group.make_state_of(state))?;
                let groups = self.0.groups.iter();
                let mistakes = groups.flat_map(|group| group.impossible_counts(state)).collect();
                crate::optim::copy_state(&self.state(), state, mistakes)
            }
        }
    };
}
pub(super) use optimizer;
