//! Which hook comes first: `before` and `after`, then `ord`, then where a hook comes from.

use std::any::TypeId;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::definition::Hook;
use super::edge::EdgeKind;

/// Orders the hooks of one moment.
///
/// A hook is ready when all that must run before it are placed. Of those that are ready the one with
/// the lowest `ord` comes next; where that is equal, the one that `hooks` lists first: explicit ones as they were added,
/// then discovered ones by crate, module path and name, then the task's.
///
/// # Errors
///
/// Every cycle, each told with its places and constraints.
pub(crate) fn order(hooks: Vec<Hook>) -> Result<Vec<Hook>, Vec<String>> {
    let graph = Graph::of(&hooks);
    let mut waiting: Vec<usize> = vec![0; hooks.len()];
    for followers in &graph.followers {
        followers.iter().for_each(|(follower, _)| waiting[*follower] += 1);
    }
    let ready = |index: usize| Reverse((hooks[index].definition.ord, index));
    let mut heap: BinaryHeap<_> = (0..hooks.len()).filter(|&index| waiting[index] == 0).map(ready).collect();
    let mut placed = Vec::with_capacity(hooks.len());
    while let Some(Reverse((_, index))) = heap.pop() {
        placed.push(index);
        for &(follower, _) in &graph.followers[index] {
            waiting[follower] -= 1;
            if waiting[follower] == 0 {
                heap.push(ready(follower));
            }
        }
    }
    if placed.len() < hooks.len() {
        return Err(graph.cycles(&hooks, &waiting));
    }
    let mut hooks: Vec<_> = hooks.into_iter().map(Some).collect();
    Ok(placed.into_iter().filter_map(|index| hooks[index].take()).collect())
}

/// Who must run before whom.
struct Graph {
    /// For each hook those that must run after it, and what says so.
    followers: Vec<Vec<(usize, Constraint)>>,
}

/// The edge that made a constraint: of which hook, and which of its edges.
#[derive(Clone, Copy)]
struct Constraint {
    hook: usize,
    edge: usize,
}

impl Graph {
    fn of(hooks: &[Hook]) -> Self {
        let mut followers = vec![Vec::new(); hooks.len()];
        if hooks.iter().all(|hook| hook.definition.edges.is_empty()) {
            return Graph { followers };
        }
        let mut by_id: HashMap<TypeId, Vec<usize>> = HashMap::new();
        for (index, hook) in hooks.iter().enumerate() {
            by_id.entry(hook.definition.id).or_default().push(index);
        }
        for (hook, it) in hooks.iter().enumerate() {
            for (edge, constraint) in it.definition.edges.iter().enumerate() {
                for &target in by_id.get(&constraint.target).into_iter().flatten() {
                    let (first, second) = match constraint.kind {
                        EdgeKind::Before => (hook, target),
                        EdgeKind::After => (target, hook),
                    };
                    followers[first].push((second, Constraint { hook, edge }));
                }
            }
        }
        Graph { followers }
    }

    /// A cycle through every hook that is on one, unless another cycle that was told holds it.
    fn cycles(&self, hooks: &[Hook], waiting: &[usize]) -> Vec<String> {
        let mut told = vec![false; hooks.len()];
        let mut cycles = Vec::new();
        for start in (0..hooks.len()).filter(|&index| waiting[index] > 0) {
            if told[start] {
                continue;
            }
            let Some(cycle) = self.shortest_cycle(start, waiting) else { continue };
            let mut text = String::from("hooks wait for each other, so that none can be first:");
            for &(first, second, Constraint { hook, edge }) in &cycle {
                told[first] = true;
                let [before, after] = [first, second].map(|it| hooks[it].definition.origin.placed());
                let after = if first == second { "itself".into() } else { after };
                let (definition, name) = (&hooks[hook].definition, hooks[hook].definition.origin.name());
                let edge = definition.edges[edge].written();
                text.push_str(&format!("\n    {before} before {after}: `{name}` says `{edge}`"));
            }
            cycles.push(text);
        }
        cycles
    }

    /// The fewest steps that lead from a hook back to itself, by breadth-first search.
    fn shortest_cycle(&self, start: usize, waiting: &[usize]) -> Option<Vec<(usize, usize, Constraint)>> {
        let mut reached: HashMap<usize, (usize, Constraint)> = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(first) = queue.pop_front() {
            for &(second, constraint) in &self.followers[first] {
                if waiting[second] == 0 || reached.contains_key(&second) {
                    continue;
                }
                reached.insert(second, (first, constraint));
                if second != start {
                    queue.push_back(second);
                    continue;
                }
                let (mut cycle, mut last) = (Vec::new(), start);
                while cycle.is_empty() || last != start {
                    let (first, constraint) = reached[&last];
                    cycle.push((first, last, constraint));
                    last = first;
                }
                cycle.reverse();
                return Some(cycle);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use proptest::prelude::*;

    use super::*;
    use crate::hook::definition::{HookDef, Origin};
    use crate::hook::edge::Edge;
    use crate::lifecycle::BeforeFit;

    /// As many types as a test has hooks: what edges point at.
    struct Type<const N: usize>;

    fn id(nth: usize) -> TypeId {
        let types: [&dyn Any; 9] = [
            &Type::<0>, &Type::<1>, &Type::<2>, &Type::<3>, &Type::<4>, &Type::<5>, &Type::<6>, &Type::<7>,
            &Type::<8>,
        ];
        types[nth].type_id()
    }

    /// A hook as a test describes it: its type, its `ord`, and for each constraint whether it is `after`, and the type of
    /// the other. Two hooks of one type are two values of it.
    type Case = (usize, i32, Vec<(bool, usize)>);

    fn hook((own, ord, edges): &Case) -> Hook {
        let edges: Vec<_> = edges
            .iter()
            .map(
                |&(after, target)| {
                    if after { Edge::after(id(target), "x") } else { Edge::before(id(target), "x") }
                },
            )
            .collect();
        let origin = Origin {
            module: "m",
            path: "m::x".into(),
            method: None,
            version: None,
            binary: false,
            file: "f",
            line: 1,
            docs: "",
        };
        let definition = HookDef::at::<BeforeFit>(origin, id(*own), *ord, |_, _| Ok(()));
        Hook { definition: definition.edges(edges.leak()), slot: None }
    }

    /// Must `first` run before `second`, because one of them says so?
    fn says(cases: &[Case], first: usize, second: usize) -> bool {
        let ((own, _, edges), (other, _, others)) = (&cases[first], &cases[second]);
        edges.contains(&(false, *other)) || others.contains(&(true, *own))
    }

    /// The order, found the slow way: again and again the best of those for whom nobody has to come first.
    fn by_hand(cases: &[Case]) -> Option<Vec<usize>> {
        let mut left: Vec<usize> = (0..cases.len()).collect();
        let mut placed = Vec::new();
        while !left.is_empty() {
            let free = |&&it: &&usize| !left.iter().any(|&other| says(cases, other, it));
            let best = *left.iter().filter(free).min_by_key(|&&it| (cases[it].1, it))?;
            left.retain(|it| *it != best);
            placed.push(best);
        }
        Some(placed)
    }

    /// Can one get from each hook to itself?
    fn on_a_circle(cases: &[Case]) -> Vec<bool> {
        let count = cases.len();
        let mut reach: Vec<Vec<bool>> =
            (0..count).map(|one| (0..count).map(|other| says(cases, one, other)).collect()).collect();
        for (via, from, to) in
            (0..count * count * count).map(|n| (n / count / count, n / count % count, n % count))
        {
            reach[from][to] |= reach[from][via] && reach[via][to];
        }
        (0..count).map(|it| reach[it][it]).collect()
    }

    fn cases() -> impl Strategy<Value = Vec<Case>> {
        let edges = prop::collection::vec((any::<bool>(), 0..9_usize), 0..3);
        prop::collection::vec((0..9_usize, -2..3, edges), 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_order_is_that_of_the_slow_way(cases in cases()) {
            let hooks: Vec<_> = cases.iter().enumerate().map(|(nth, case)| {
                let mut hook = hook(case);
                hook.definition.origin.line = u32::try_from(nth).unwrap();
                hook
            }).collect();
            match (order(hooks), by_hand(&cases)) {
                (Ok(ordered), Some(expected)) => {
                    let lines: Vec<_> = ordered.iter().map(|hook| hook.definition.origin.line as usize).collect();
                    prop_assert_eq!(lines, expected);
                }
                (Err(told), None) => {
                    // Every hook that is told is on a circle, and every circle has one that is told.
                    let circles = on_a_circle(&cases);
                    let text = told.join("\n");
                    let is_told = |nth: usize| text.contains(&format!("(f:{nth})"));
                    for (nth, on_circle) in circles.into_iter().enumerate() {
                        prop_assert!(!is_told(nth) || on_circle, "{} is on no circle: {}", nth, text);
                    }
                    let mut rest = cases.clone();
                    for nth in (0..cases.len()).filter(|nth| is_told(*nth)).rev() {
                        rest.remove(nth);
                    }
                    prop_assert!(by_hand(&rest).is_some(), "a circle is not told: {}", text);
                }
                (ordered, expected) => prop_assert!(false, "{:?} but {:?}", ordered.map(|it| it.len()), expected),
            }
        }
    }
}
