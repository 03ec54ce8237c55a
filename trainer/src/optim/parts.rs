//! The optimizers of a run: one for the whole model, or one for each of its parts.

use super::Optimizer;
use crate::error::{Error, Result, suggestion};
use crate::vars::Vars;

/// The optimizers of a run.
#[derive(Default)]
pub(crate) struct Optimizers {
    /// Each with the part of the model that it updates; an empty name is the whole.
    parts: Vec<(String, Box<dyn Optimizer>)>,
    /// The one that steps now, or that stepped last.
    current: usize,
}

impl Optimizers {
    /// The one for a part takes the place of the one before it, if there is one.
    pub(crate) fn insert(&mut self, part: String, optimizer: Box<dyn Optimizer>) {
        match self.parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, place)) => *place = optimizer,
            None => self.parts.push((part, optimizer)),
        }
    }

    /// Hands every optimizer its parameters.
    pub(crate) fn bind(&mut self, vars: &Vars, mistakes: &mut Vec<String>) {
        if !self.parts.is_empty() && vars.parameters().next().is_none() {
            let hint = "build the network on its root, `net(&vs.root())`";
            return mistakes.push(format!("the task's `VarStore` holds no parameter: {hint}"));
        }
        let names: Vec<String> = self.parts.iter().map(|(part, _)| part.clone()).collect();
        for (part, optimizer) in &mut self.parts {
            let own = vars.part(part);
            if own.parameters().next().is_none() {
                let tops = vars.parameters().filter_map(|var| var.name.split('.').next());
                let similar = suggestion(part, tops);
                mistakes
                    .push(format!("`.optimizer_of(\"{part}\", …)`: no parameter's name begins so{similar}"));
            } else if let Err(error) = optimizer.bind(&own) {
                mistakes.push(error.to_string());
            }
        }
        for var in vars.parameters() {
            let holders: Vec<_> = names.iter().filter(|part| var.is_in(part)).collect();
            if let [one, other, ..] = holders[..] {
                let name = |part: &String| match part.as_str() {
                    "" => "`.optimizer(…)`".to_owned(),
                    part => format!("`.optimizer_of(\"{part}\", …)`"),
                };
                return mistakes.push(format!(
                    "`{}` would be updated twice, by {} and by {}: give each parameter to one",
                    var.name,
                    name(one),
                    name(other)
                ));
            }
        }
    }

    /// The one that steps now, or that stepped last; the first before any did.
    #[inline]
    pub(crate) fn current(&mut self) -> Result<&mut dyn Optimizer> {
        match self.parts.get_mut(self.current) {
            Some((_, optimizer)) => Ok(optimizer.as_mut()),
            None => Err(none()),
        }
    }

    /// The one of a part of the model.
    pub(crate) fn of(&mut self, part: &str) -> Result<&mut dyn Optimizer> {
        let index = self.index(part)?;
        Ok(self.parts[index].1.as_mut())
    }

    /// The next step is that of this part's optimizer.
    pub(crate) fn choose(&mut self, part: &str) -> Result<()> {
        self.current = self.index(part)?;
        Ok(())
    }

    /// With one optimizer it steps; with more the task says which.
    pub(crate) fn choose_only(&mut self) -> Result<()> {
        if self.parts.len() > 1 {
            let parts = self.listed();
            return Err(Error::usage(format!(
                "there is an optimizer for each of {parts}: `train_step` says which one steps, `step.opt_step_of(\"…\", …)`"
            )));
        }
        Ok(())
    }

    fn index(&self, part: &str) -> Result<usize> {
        self.parts.iter().position(|(known, _)| known == part).ok_or_else(|| match self.parts.len() {
            0 => none(),
            1 if self.parts[0].0.is_empty() => Error::usage(format!(
                "no optimizer is of `{part}` alone: there is one for the whole model; say `.optimizer_of(\"{part}\", …)`"
            )),
            _ => Error::usage(format!("no optimizer is of `{part}`; there is one for each of {}", self.listed())),
        })
    }

    fn listed(&self) -> String {
        self.parts.iter().map(|(part, _)| format!("`{part}`")).collect::<Vec<_>>().join(", ")
    }

    /// Drops every gradient.
    pub(crate) fn zero_grad(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(|(_, optimizer)| optimizer.zero_grad())
    }

    /// Is there one?
    pub(crate) fn require(&self) -> Result<()> {
        if self.parts.is_empty() { Err(none()) } else { Ok(()) }
    }

    pub(crate) fn get(&self, part: Option<&str>) -> Option<&dyn Optimizer> {
        let found = match part {
            None => self.parts.get(self.current),
            Some(part) => self.parts.iter().find(|(known, _)| known == part),
        };
        found.map(|(_, optimizer)| optimizer.as_ref())
    }
}

fn none() -> Error {
    Error::usage("training needs an optimizer: give the builder one, `.optimizer(AdamW::new(1e-3))`")
}
