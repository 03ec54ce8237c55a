//! States within a state: how a [`Saved`] holds the states of several parts.

use std::collections::BTreeMap;

use tch::Tensor;

use super::Saved;
use super::manifest::Values;
use crate::error::Result;

/// What the prefix of an average begins with, after the index of its state.
const AVERAGE: &str = "average/";

/// The names and the values of the states within a state. Their tensors are among those of the
/// outer state, with names that begin with the index of the inner one in these lists.
pub(crate) struct Nested {
    pub(crate) parts: Vec<String>,
    pub(crate) values: Vec<Values>,
}

impl Nested {
    /// Returns the name that a tensor of the outer state has in the inner one.
    pub(crate) fn name_of(outer: &str) -> &str {
        outer.split_once('/').map_or(outer, |(_, name)| name)
    }
}

impl Saved {
    /// Adds the tensors of other states, without copying them.
    pub(crate) fn nest(&mut self, states: Vec<(String, Saved)>) -> Result<Nested> {
        let mut nested = Nested { parts: Vec::new(), values: Vec::new() };
        for (nth, (part, state)) in states.into_iter().enumerate() {
            for (name, tensor) in &state.tensors {
                self.set_tensor(&format!("{nth}/{name}"), tensor)?;
            }
            for (name, average) in &state.averages {
                self.set_tensor(&format!("{nth}/{AVERAGE}{name}"), average)?;
            }
            self.shares
                .extend(state.shares.into_iter().map(|(name, share)| (format!("{nth}/{name}"), share)));
            nested.parts.push(part);
            nested.values.push(state.values);
        }
        Ok(nested)
    }

    /// Returns the states that were [nested](Self::nest). A checkpoint keeps their shares among the
    /// tensors.
    pub(crate) fn nested(&self, Nested { parts, values }: Nested) -> Vec<(String, Saved)> {
        let inner = |(nth, (part, values)): (usize, (String, Values))| {
            let prefix = format!("{nth}/");
            let named = |(name, tensor): (&String, &Tensor)| {
                Some((name.strip_prefix(&prefix)?.to_owned(), tensor.shallow_clone()))
            };
            let mut tensors: BTreeMap<_, _> = self.tensors.iter().filter_map(named).collect();
            let averages = super::states::take(&mut tensors, AVERAGE);
            (part, Saved { values, tensors, averages, ..Saved::new() })
        };
        parts.into_iter().zip(values).enumerate().map(inner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_returned_as_they_were_nested() -> Result<()> {
        let state = |average: bool| {
            let mut state = Saved::new();
            state.set("n", &1)?;
            state.set_tensor("average", &Tensor::from(1.0))?;
            state.set_tensor("1/x", &Tensor::from(2.0))?;
            if average {
                state.set_average("x", &Tensor::from(3.0))?;
            }
            Ok::<_, crate::Error>(state)
        };
        let mut outer = Saved::new();
        let nested = outer.nest(vec![("one".to_owned(), state(true)?), ("two".to_owned(), state(false)?)])?;
        let names: Vec<&str> = outer.tensors.keys().map(String::as_str).collect();
        // These names stand in the checkpoints of earlier versions.
        assert_eq!(names, ["0/1/x", "0/average", "0/average/x", "1/1/x", "1/average"]);
        for ((part, state), (name, has_average)) in
            outer.nested(nested).into_iter().zip([("one", true), ("two", false)])
        {
            assert_eq!((part.as_str(), state.get::<i32>("n")?), (name, 1));
            assert_eq!(state.tensors.keys().collect::<Vec<_>>(), ["1/x", "average"]);
            assert_eq!(state.averages.keys().collect::<Vec<_>>(), ["x"].repeat(usize::from(has_average)));
        }
        Ok(())
    }
}
