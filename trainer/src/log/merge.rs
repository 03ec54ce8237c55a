//! Merging the logged values of all ranks.

use serde::{Deserialize, Serialize};

use super::sum::Sum;
use super::{Log, Meter, Reduce, Value};
use crate::distributed::World;
use crate::error::{Error, Result, shortened};
use crate::phase::Phase;
use crate::values::float::Float;

/// The values to merge: the values of a pass, or the values since the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    Pass,
    Window,
}

/// The running reduction of one metric on one rank.
#[derive(Debug, Deserialize, Serialize)]
struct Term {
    name: String,
    reduce: Reduce,
    known: Option<Float>,
    weight: Float,
    /// Whether the last value was logged by a hook that runs on rank 0 only.
    is_main_only: bool,
}

impl Log {
    /// Replaces the running reductions of a phase with those over all ranks. The results are
    /// bit-identical on all ranks, because they merge them in the same order.
    ///
    /// # Errors
    ///
    /// Returns an error if a tensor cannot be read, if the collective fails, or if, in a pass, a
    /// rank has not logged a name that another has, or has logged it with another reduction. Names
    /// logged by hooks on rank 0 only are not compared. A rank that logged nothing else is not
    /// compared either, because it had no data.
    pub(crate) fn join_ranks(&mut self, world: &World, phase: Phase, what: Joined) -> Result<()> {
        if world.is_solo() {
            return Ok(());
        }
        let mut own = Vec::new();
        for index in 0..self.meters.len() {
            let meter = &self.meters[index];
            if meter.phase != phase || (what == Joined::Pass && meter.last.is_none()) {
                continue;
            }
            let unread = match what {
                Joined::Pass => self.meters[index].pass.unread.take(),
                Joined::Window => self.meters[index].window.unread.take(),
            };
            let read = unread.map(|tensor| self.read(&tensor)).transpose()?;
            let meter = &mut self.meters[index];
            let (reduce, is_main_only) = (meter.reduce, meter.is_main_only);
            let sum = meter.joined(what);
            if let Some(read) = read {
                sum.known = Some(reduce.join(sum.known, read));
            }
            if what == Joined::Window && sum.is_empty() {
                continue;
            }
            let (known, weight) = (sum.known.map(Float), Float(sum.weight));
            own.push(Term { name: meter.name.clone(), reduce, known, weight, is_main_only });
        }
        let all = world.gather_named(&own, "the metrics of a pass")?;
        if what == Joined::Pass {
            check_names(&all, phase)?;
        }
        let mut joined: Vec<(Term, Sum)> = Vec::new();
        for term in all.into_iter().flatten() {
            let position = joined.iter().position(|(known, _)| known.name == term.name);
            let index = position.unwrap_or(joined.len());
            let (known, weight) = (term.known.map(|it| it.0), term.weight.0);
            if position.is_none() {
                joined.push((term, Sum::default()));
            }
            let (first, sum) = &mut joined[index];
            if let Some(known) = known {
                sum.known = Some(match first.reduce {
                    // The value of the first rank that has one.
                    Reduce::Last => sum.known.unwrap_or(known),
                    reduce => reduce.join(sum.known, known),
                });
            }
            sum.weight += weight;
        }
        for (term, sum) in joined {
            let index = self.index_of(phase, &term.name, term.reduce);
            let meter = &mut self.meters[index];
            meter.is_main_only = term.is_main_only;
            if what == Joined::Pass {
                meter.last.get_or_insert(Value::Number(f64::NAN));
            }
            *meter.joined(what) = sum;
        }
        Ok(())
    }
}

impl Meter {
    fn joined(&mut self, what: Joined) -> &mut Sum {
        match what {
            Joined::Pass => &mut self.pass,
            Joined::Window => &mut self.window,
        }
    }
}

/// Returns an error if the ranks with data have not logged the same names with the same reductions.
fn check_names(all: &[Vec<Term>], phase: Phase) -> Result<()> {
    let of_all = |terms: &[Term]| terms.iter().any(|term| !term.is_main_only);
    for (rank, terms) in all.iter().enumerate().filter(|(_, terms)| of_all(terms)) {
        for (other, others) in all.iter().enumerate().filter(|(_, terms)| of_all(terms)) {
            for term in terms.iter().filter(|term| !term.is_main_only) {
                let name = shortened(&term.name);
                match others.iter().find(|theirs| theirs.name == term.name) {
                    None => {
                        return Err(Error::usage(format!(
                            "rank {rank} has logged `{phase}/{name}` in this pass, and rank {other} has not: log each name on \
                             every rank, or in a hook with `main_only`"
                        )));
                    }
                    Some(theirs) if theirs.reduce != term.reduce => {
                        return Err(Error::usage(format!(
                            "`{phase}/{name}` has the reduction {} on rank {rank}, but {} on rank {other}: log it with one reduction on all ranks",
                            term.reduce, theirs.reduce
                        )));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    Ok(())
}
