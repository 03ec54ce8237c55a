//! [`ParameterRow`]: which parameters an optimizer updates, and with which settings.

use std::collections::HashSet;

use ::tch::Tensor;

use super::{Optimizers, ParamGroup};
use crate::model::vars::Vars;

/// The parameters of one [group](ParamGroup) of an optimizer, or those that no optimizer updates:
/// a row of the second table of [`HookTable`](crate::HookTable).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParameterRow {
    /// The part of the model whose optimizer has the group; empty for the optimizer of the whole
    /// model.
    pub part: String,
    /// The [name](ParamGroup::label) of the group; empty for parameters that no optimizer updates.
    pub group: String,
    /// The name of the algorithm, such as `AdamW`; `None` for parameters that no optimizer updates.
    pub algorithm: Option<&'static str>,
    /// The learning rate.
    pub lr: Option<f64>,
    /// The weight decay.
    pub weight_decay: Option<f64>,
    /// The names of the parameters.
    pub parameters: Vec<String>,
    /// The number of elements of all parameters together.
    pub elements: u64,
    /// The number of parameters that are frozen: they require no gradient.
    pub frozen: usize,
}

impl ParameterRow {
    fn of<'p>(parameters: impl Iterator<Item = (&'p str, &'p Tensor)>) -> Self {
        let mut row = ParameterRow {
            part: String::new(),
            group: String::new(),
            algorithm: None,
            lr: None,
            weight_decay: None,
            parameters: Vec::new(),
            elements: 0,
            frozen: 0,
        };
        for (name, parameter) in parameters {
            row.parameters.push(name.to_owned());
            row.elements += parameter.numel() as u64;
            row.frozen += usize::from(!parameter.requires_grad());
        }
        row
    }

    /// Returns a row for each group of each optimizer, and one for the parameters that are in no
    /// group, if there are any.
    pub(crate) fn all(optimizers: &Optimizers, vars: &Vars) -> Vec<Self> {
        let mut rows = Vec::new();
        for (part, optimizer, ..) in optimizers.parts() {
            rows.extend(optimizer.groups().iter().map(|group| ParameterRow {
                part: part.to_owned(),
                group: group.label(),
                algorithm: Some(ParamGroup::algorithm(group)),
                lr: Some(group.lr),
                weight_decay: Some(group.weight_decay),
                ..ParameterRow::of(group.names().zip(group.parameters()))
            }));
        }
        let known: HashSet<&String> = rows.iter().flat_map(|row| &row.parameters).collect();
        let others = vars.parameters().filter(|var| !known.contains(&var.name));
        let others = ParameterRow::of(others.map(|var| (var.name.as_str(), &var.tensor)));
        rows.extend(Some(others).filter(|row| !row.parameters.is_empty()));
        rows
    }
}
