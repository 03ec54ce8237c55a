//! The description as JSON.

use serde_json::{Value, json};

use super::{Contributor, HookRow, HookTable, Node, parameters, short};
use crate::moment::Unit;
use crate::phase::Phase;

impl HookTable {
    /// Returns the table as JSON, for other programs. As long as `version` is 1, new fields may be
    /// added, but existing fields are not changed or removed:
    ///
    /// - `version`: 1
    /// - `rank`: the rank of the process that the table describes; on ranks other than 0, hooks
    ///   that run on rank 0 only are not listed
    /// - `moments`: the points and operations in the order of the tree, each with
    ///   - `name`: its name in an attribute; `kind`: `point` or `operation`; `about`: its
    ///     documentation; `phases`: the phases that reach it
    ///   - `hooks`: its hooks in dispatch order, each with `hook` (its path), `stage` (null if it
    ///     is in none), `ord`, `sets` and `constraints` (as written), `tied` (whether only the
    ///     order of registration decides between it and a neighbor), `phases`, `every`
    ///     (`{ "n", "unit" }` or null), `when` (a path or null), `of` (the patterns of its modules,
    ///     as written), `main_only`, `observes`, `writes`, `trial` (null if the hook does not
    ///     specify it), `crate` (null for a closure), `version`, `file`, `line`, `about`, `seen`
    ///     (what the hook changed according to a full tape; null without a tape)
    /// - `crates`: the crates that define hooks, each with `crate`, `version`, `hooks` (their
    ///   number)
    /// - `parameters`: the rows of the second table, each with `part`, `group`, `algorithm`, `lr`,
    ///   `weight_decay` (null for parameters that no optimizer updates), `parameters` (their
    ///   names), `elements`, `frozen` (the number of frozen parameters)
    #[must_use]
    pub fn json(&self) -> String {
        let moments: Vec<_> = self.moments().map(moment).collect();
        let crates = self.contributors().into_iter().map(|Contributor { krate, version, hooks }| {
            // Closures have no crate.
            let krate = Some(krate).filter(|krate| !krate.is_empty());
            json!({ "crate": krate, "version": version, "hooks": hooks })
        });
        let crates: Vec<_> = crates.collect();
        let parameters: Vec<_> = self.parameters.iter().map(parameters::json).collect();
        let all = json!({
            "version": 1,
            "rank": self.rank,
            "moments": moments,
            "crates": crates,
            "parameters": parameters,
        });
        format!("{all:#}")
    }
}

fn moment(node: &Node) -> Value {
    let info = node.info;
    json!({
        "name": info.path(),
        "kind": if node.is_operation() { "operation" } else { "point" },
        "about": info.docs,
        "phases": info.phases.iter().map(Phase::name).collect::<Vec<_>>(),
        "hooks": node.rows.iter().map(hook).collect::<Vec<_>>(),
    })
}

fn hook(row: &HookRow) -> Value {
    let krate = (!row.krate.is_empty()).then_some(row.krate);
    let every = row.every.map(|(n, unit): (u64, Unit)| json!({ "n": n, "unit": unit.name() }));
    json!({
        "hook": row.hook,
        "stage": row.stage,
        "ord": row.ord,
        "sets": row.sets,
        "constraints": row.constraints,
        "tied": row.tied,
        "phases": row.phases.iter().map(|phase| phase.name()).collect::<Vec<_>>(),
        "every": every,
        "when": row.when,
        "of": row.of,
        "main_only": row.main_only,
        "observes": row.observes,
        "writes": row.writes,
        "may_fail": row.may_fail,
        "trial": row.trial,
        "crate": krate,
        "version": row.version,
        "file": short(row.file),
        "line": row.line,
        "about": row.docs,
        "seen": row.seen,
    })
}
