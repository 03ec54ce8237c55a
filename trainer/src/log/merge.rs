//! Merging the logged values of all ranks.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::meter::{Meter, Meters, Reader, Reduce, Sum, Value};
use crate::distributed::World;
use crate::error::{Error, Result, shortened};
use crate::phase::Phase;
use crate::values::float::Float;

/// The values to merge: those of a pass, or those since the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    Pass,
    Window,
}

/// The running reduction of one metric on one rank.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Term {
    pub(super) name: String,
    pub(super) reduce: Reduce,
    known: Option<Float>,
    weight: Float,
    /// Whether the last value was logged by a hook that runs on rank 0 only.
    pub(super) is_main_only: bool,
}

/// Returns the running reductions of a phase on this rank. Values that are still on a device are
/// copied to the CPU first.
pub(super) fn terms(meters: &mut Meters, reader: &Reader, phase: Phase, what: Joined) -> Result<Vec<Term>> {
    let mut terms = Vec::new();
    for meter in meters.of_phase(phase) {
        let reduce = meter.reduce;
        let is_main_only = meter.is_main_only;
        let is_logged = meter.last.is_some();
        let sum = meter.joined(what);
        reader.read_sum(sum, reduce)?;
        let is_term = match what {
            Joined::Pass => is_logged,
            Joined::Window => !sum.is_empty(),
        };
        if is_term {
            let known = sum.known.map(Float);
            let weight = Float(sum.weight);
            terms.push(Term { name: meter.name.clone(), reduce, known, weight, is_main_only });
        }
    }
    Ok(terms)
}

/// Exchanges the running reductions of all ranks, and joins them in rank order. For a pass, also
/// checks that the ranks with data have logged the same names with the same reductions.
pub(super) fn join(world: &World, own: &Vec<Term>, phase: Phase, what: Joined) -> Result<Vec<(Term, Sum)>> {
    let all = world.gather_named(own, "the metrics of a pass")?;
    if what == Joined::Pass {
        check_names(&all, phase)?;
    }
    let mut joined: IndexMap<String, (Term, Sum)> = IndexMap::new();
    for term in all.into_iter().flatten() {
        let known = term.known.map(|known| known.0);
        let weight = term.weight.0;
        match joined.get_mut(&term.name) {
            None => {
                joined.insert(term.name.clone(), (term, Sum { known, unread: None, weight }));
            }
            Some((first, sum)) => {
                sum.known = first.reduce.join_ranks(sum.known, known);
                sum.weight += weight;
            }
        }
    }
    Ok(joined.into_values().collect())
}

impl Meter {
    /// Replaces the running reduction of this rank with the joined reduction of all ranks.
    pub(super) fn set_joined(&mut self, is_main_only: bool, sum: Sum, what: Joined) {
        self.is_main_only = is_main_only;
        if what == Joined::Pass {
            self.last.get_or_insert(Value::Number(f64::NAN));
        }
        *self.joined(what) = sum;
    }

    fn joined(&mut self, what: Joined) -> &mut Sum {
        match what {
            Joined::Pass => &mut self.pass,
            Joined::Window => &mut self.window,
        }
    }
}

/// Returns an error if the ranks with data have not all logged the same names with the same
/// reductions.
fn check_names(all: &[Vec<Term>], phase: Phase) -> Result<()> {
    let with_data = (0..).zip(all).filter(|(_, terms)| terms.iter().any(|term| !term.is_main_only));
    let mut of_ranks = with_data.map(|(rank, terms)| (rank, by_name(terms)));
    let Some((first, expected)) = of_ranks.next() else { return Ok(()) };
    for (rank, own) in of_ranks {
        let lacks = |(one, names): (u32, &Reductions<'_>), (other, others): (u32, &Reductions<'_>)| {
            let name = names.keys().find(|name| !others.contains_key(*name))?;
            Some(Error::usage(format!(
                "rank {one} has logged `{phase}/{}` in this pass, and rank {other} has not: log each name on every rank, or in a \
                 hook with `Cx<Main<…>>`",
                shortened(name)
            )))
        };
        let (one, other) = ((first, &expected), (rank, &own));
        if let Some(error) = lacks(one, other).or_else(|| lacks(other, one)) {
            return Err(error);
        }
        if let Some((name, reduce)) = expected.iter().find(|(name, reduce)| own.get(*name) != Some(*reduce)) {
            return Err(Error::usage(format!(
                "`{phase}/{}` has the reduction {reduce} on rank {first}, but {} on rank {rank}: log it with one reduction on all \
                 ranks",
                shortened(name),
                own[name]
            )));
        }
    }
    Ok(())
}

/// The reductions by name, excluding those of metrics that are logged on rank 0 only.
type Reductions<'a> = BTreeMap<&'a str, Reduce>;

fn by_name(terms: &[Term]) -> Reductions<'_> {
    let of_all = terms.iter().filter(|term| !term.is_main_only);
    of_all.map(|term| (term.name.as_str(), term.reduce)).collect()
}
