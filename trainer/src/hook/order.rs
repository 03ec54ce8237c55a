//! The order of hooks: by `before` and `after`, then by stage, then by `ord`, then by origin.

use std::any::TypeId;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

use super::constraint::Side;
use super::definition::Hook;
use super::set::Stage;

/// The position at which a hook runs if no constraint says otherwise.
type Position = (Stage, i32);

fn own_position<R>(hook: &Hook<R>) -> Position {
    (hook.definition.stage(), hook.definition.ord)
}

fn have_constraints<R>(hooks: &[Hook<R>]) -> bool {
    hooks.iter().any(|hook| !hook.definition.constraints.is_empty())
}

/// Orders the hooks of one moment.
///
/// A hook is ready when all hooks that must run before it are placed. Among the ready hooks, those
/// in the earliest stage come first and, within a stage, those with the lowest `ord`. Ties go to
/// the hook that `hooks` lists first: the builder's hooks in the order they were added, then
/// discovered ones by crate, module path and name, then the task's. A hook with `before` takes the
/// position of its earliest target if that is earlier than its own. A constraint therefore moves
/// the hook that has it, not its target.
///
/// # Errors
///
/// Returns a message for each cycle found, with source locations and constraints. Every hook on a
/// cycle is in at least one message.
pub(crate) fn order<R>(mut hooks: Vec<Hook<R>>) -> Result<Vec<Hook<R>>, Vec<String>> {
    if !have_constraints(&hooks) {
        hooks.sort_by_key(own_position);
        return Ok(hooks);
    }
    let graph = Graph::of(&hooks);
    let positions = graph.positions(&hooks);
    let placed = graph.placed(|index| positions[index]).map_err(|waiting| graph.cycles(&hooks, &waiting))?;
    let mut hooks: Vec<_> = hooks.into_iter().map(Some).collect();
    Ok(placed.into_iter().filter_map(|index| hooks[index].take()).collect())
}

/// Returns whether the first of these two hooks of a moment runs before the second one, regardless
/// of the order in which `hooks` lists them. If too many orders are possible to try all, returns
/// whether constraints put the first one before the second one.
pub(crate) fn is_decided<R>(hooks: &[Hook<R>], first: usize, second: usize) -> bool {
    let graph = Graph::of(hooks);
    let positions = graph.positions(hooks);
    // If there is a cycle, no hook runs.
    graph.placed(|index| positions[index]).is_ok() && !graph.can_precede(second, first, &positions)
}

/// The maximum number of sets of placed hooks that [`Graph::can_precede`] tries.
const MAX_STATES: usize = 10_000;

/// The graph of order constraints.
struct Graph {
    /// For each hook, the hooks that must run after it, each with the constraint that requires this
    /// order.
    followers: Vec<Vec<(usize, ConstraintRef)>>,
    /// For each target of a `before` constraint, the hooks that have the constraint.
    preceded_by: HashMap<usize, Vec<usize>>,
}

/// A constraint, by the index of its hook and its index among the hook's constraints.
#[derive(Clone, Copy)]
struct ConstraintRef {
    hook: usize,
    index: usize,
}

impl Graph {
    fn of<R>(hooks: &[Hook<R>]) -> Self {
        let mut followers = vec![Vec::new(); hooks.len()];
        let mut preceded_by: HashMap<usize, Vec<usize>> = HashMap::new();
        if !have_constraints(hooks) {
            return Graph { followers, preceded_by };
        }
        let mut by_id: HashMap<TypeId, Vec<usize>> = HashMap::new();
        for (index, hook) in hooks.iter().enumerate() {
            let sets = hook.definition.sets.iter().map(|set| set.id);
            for id in sets.chain([hook.definition.id]) {
                by_id.entry(id).or_default().push(index);
            }
        }
        for (hook, it) in hooks.iter().enumerate() {
            for (index, constraint) in it.definition.constraints.iter().enumerate() {
                for &target in by_id.get(&constraint.target.id).into_iter().flatten() {
                    let (first, second) = match constraint.side {
                        Side::Before => {
                            preceded_by.entry(target).or_default().push(hook);
                            (hook, target)
                        }
                        Side::After => (target, hook),
                    };
                    followers[first].push((second, ConstraintRef { hook, index }));
                }
            }
        }
        Graph { followers, preceded_by }
    }

    /// Returns the hooks in order. Among the hooks that no longer wait for another hook, the one
    /// with the lowest key comes next.
    ///
    /// # Errors
    ///
    /// If there is a cycle, returns how many other hooks each hook still waits for.
    fn placed<K: Ord>(&self, key: impl Fn(usize) -> K) -> Result<Vec<usize>, Vec<usize>> {
        let count = self.followers.len();
        let mut waiting: Vec<usize> = vec![0; count];
        for followers in &self.followers {
            followers.iter().for_each(|(follower, _)| waiting[*follower] += 1);
        }
        let ready = |index: usize| Reverse((key(index), index));
        let mut heap: BinaryHeap<_> = (0..count).filter(|&index| waiting[index] == 0).map(ready).collect();
        let mut placed = Vec::with_capacity(count);
        while let Some(Reverse((_, index))) = heap.pop() {
            placed.push(index);
            for &(follower, _) in &self.followers[index] {
                waiting[follower] -= 1;
                if waiting[follower] == 0 {
                    heap.push(ready(follower));
                }
            }
        }
        if placed.len() == count { Ok(placed) } else { Err(waiting) }
    }

    /// Returns whether `early` runs before `late` for some order of the hooks that tie.
    ///
    /// Searches the orders in which hooks can be placed. Leaves out hooks for which neither of the
    /// two waits, because they do not change which of the two is ready first. In a tie, a hook for
    /// which only `early` waits is placed first, and one for which only `late` waits is placed last.
    /// Of the hooks for which both wait, all orders are tried, except that hooks with the same
    /// followers are interchangeable. The number of states may grow exponentially: after
    /// [`MAX_STATES`], returns `true`. If constraints put `late` first, returns `false` without a
    /// search.
    fn can_precede(&self, early: usize, late: usize, positions: &[Position]) -> bool {
        let [before_early, before_late] = [early, late].map(|index| self.ancestors(index));
        if before_early[late] {
            return false;
        }
        let rank = |index: usize| match (before_early[index], before_late[index]) {
            (true, false) => 0,
            (true, true) => 1,
            _ => 2,
        };
        let relevant: Vec<usize> =
            (0..self.followers.len()).filter(|&index| before_early[index] || before_late[index]).collect();
        let followers: Vec<Vec<usize>> = self
            .followers
            .iter()
            .map(|followers| {
                let mut followers: Vec<usize> = followers.iter().map(|(follower, _)| *follower).collect();
                followers.retain(|index| relevant.contains(index));
                followers.sort_unstable();
                followers.dedup();
                followers
            })
            .collect();
        let mut seen = HashSet::new();
        let mut open = vec![vec![false; self.followers.len()]];
        while let Some(placed) = open.pop() {
            if !seen.insert(placed.clone()) {
                continue;
            }
            if seen.len() > MAX_STATES {
                return true;
            }
            let waits = |index: usize| {
                relevant.iter().any(|&other| !placed[other] && followers[other].contains(&index))
            };
            let ready = relevant.iter().copied().filter(|&index| !placed[index] && !waits(index));
            let ready: Vec<_> = ready.map(|index| ((positions[index], rank(index)), index)).collect();
            let Some(next) = ready.iter().map(|(key, _)| *key).min() else { continue };
            let mut tied: Vec<usize> =
                ready.iter().filter(|(key, _)| *key == next).map(|(_, index)| *index).collect();
            if tied.contains(&early) {
                return true;
            }
            tied.retain(|&index| index != late);
            if next.1 == 1 {
                let mut tried = HashSet::new();
                tied.retain(|&index| tried.insert(&followers[index]));
            } else {
                tied.truncate(1);
            }
            open.extend(tied.into_iter().map(|index| {
                let mut placed = placed.clone();
                placed[index] = true;
                placed
            }));
        }
        false
    }

    /// Returns, for each hook, whether it is the hook `of` or must run before that hook.
    fn ancestors(&self, of: usize) -> Vec<bool> {
        let mut found = vec![false; self.followers.len()];
        let mut open = vec![of];
        while let Some(index) = open.pop() {
            if !std::mem::replace(&mut found[index], true) {
                let is_before = |first: &usize| self.followers[*first].iter().any(|(next, _)| *next == index);
                open.extend((0..self.followers.len()).filter(is_before));
            }
        }
        found
    }

    /// Returns the position of each hook. The earliest positions are determined first, because a
    /// target may take its position from one of its own targets.
    fn positions<R>(&self, hooks: &[Hook<R>]) -> Vec<Position> {
        let mut positions: Vec<Position> = hooks.iter().map(own_position).collect();
        let mut heap: BinaryHeap<_> =
            self.preceded_by.keys().map(|&target| Reverse((positions[target], target))).collect();
        while let Some(Reverse((position, target))) = heap.pop() {
            for &hook in self.preceded_by.get(&target).into_iter().flatten() {
                if position < positions[hook] {
                    positions[hook] = position;
                    heap.push(Reverse((position, hook)));
                }
            }
        }
        positions
    }

    /// Returns a message for the shortest cycle through each hook, except for hooks on a cycle that
    /// an earlier message reports.
    fn cycles<R>(&self, hooks: &[Hook<R>], waiting: &[usize]) -> Vec<String> {
        let mut reported = vec![false; hooks.len()];
        let mut cycles = Vec::new();
        for start in (0..hooks.len()).filter(|&index| waiting[index] > 0) {
            if reported[start] {
                continue;
            }
            let Some(cycle) = self.shortest_cycle(start, waiting) else { continue };
            let mut text =
                String::from("the order constraints of these hooks form a cycle; remove at least one:");
            for &(first, second, ConstraintRef { hook, index }) in &cycle {
                reported[first] = true;
                let [before, after] = [first, second].map(|nth| hooks[nth].definition.origin.placed());
                let after = if first == second { "itself".into() } else { after };
                let definition = &hooks[hook].definition;
                let name = definition.origin.name();
                let constraint = definition.constraints[index].written();
                text.push_str(&format!("\n    {before} before {after}: `{name}` has `{constraint}`"));
            }
            cycles.push(text);
        }
        cycles
    }

    /// Finds the shortest cycle through a hook by breadth-first search.
    fn shortest_cycle(&self, start: usize, waiting: &[usize]) -> Option<Vec<(usize, usize, ConstraintRef)>> {
        let mut reached: HashMap<usize, (usize, ConstraintRef)> = HashMap::new();
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
                let mut cycle = Vec::new();
                let mut last = start;
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
    use crate::hook::constraint::{OrderConstraint, OrderTarget};
    use crate::hook::definition::{HookDef, Origin, Shim};
    use crate::hook::set::{HookSet, SetRef};
    use crate::hook::stages;
    use crate::hook::tests::toy::Toy;
    use crate::lifecycle::BeforeFit;

    /// Types that identify the hooks of a test.
    struct Type<const N: usize>;

    /// A set without a position, as opposed to a stage.
    struct Set;

    impl HookSet for Set {}

    /// Returns the ID of the `nth` hook type or, for an index beyond the hook types, of a set.
    fn id(nth: usize) -> TypeId {
        let types: [&dyn Any; 9] = [
            &Type::<0>, &Type::<1>, &Type::<2>, &Type::<3>, &Type::<4>, &Type::<5>, &Type::<6>, &Type::<7>,
            &Type::<8>,
        ];
        types.get(nth).map_or_else(|| set(nth - types.len()).id, |it| (*it).type_id())
    }

    fn set(nth: usize) -> SetRef {
        [SetRef::of::<stages::Averaging>("x"), SetRef::of::<stages::Display>("x"), SetRef::of::<Set>("x")]
            [nth]
    }

    /// A hook in a test: its type, its `ord`, its set, and its constraints. Each constraint is a
    /// pair: whether it is `after`, and its target. Two hooks of the same type belong to different
    /// values.
    type Case = (usize, i32, Option<usize>, Vec<(bool, usize)>);

    fn hook((own, ord, of_set, constraints): &Case) -> Hook<Toy> {
        let constraints: Vec<_> = constraints
            .iter()
            .map(|&(after, target)| {
                let target = OrderTarget { id: id(target), is_set: target >= 9 };
                if after { OrderConstraint::after(target, "x") } else { OrderConstraint::before(target, "x") }
            })
            .collect();
        let sets: Vec<_> = of_set.iter().map(|nth| set(*nth)).collect();
        let origin = Origin::new("m", "m::x", None, "f", [(0, 0); 2]).written(1, 1, "");
        let definition =
            HookDef::new::<BeforeFit>(origin, id(*own), *ord, Shim::Point(|_: &mut Toy, _| Ok(())));
        Hook::new(HookDef { constraints: constraints.leak(), sets: sets.into(), ..definition }, None)
    }

    /// Returns whether a constraint requires `first` to run before `second`.
    fn requires(cases: &[Case], first: usize, second: usize) -> bool {
        names(&cases[first], false, &cases[second]) || names(&cases[second], true, &cases[first])
    }

    /// Returns whether the first hook has a constraint, on the given side, that names the second
    /// hook or its set.
    fn names((.., constraints): &Case, after: bool, (other, _, of_set, _): &Case) -> bool {
        constraints.contains(&(after, *other))
            || of_set.is_some_and(|of_set| constraints.contains(&(after, 9 + of_set)))
    }

    /// Returns the stage and `ord` that determine when a hook runs: its own, or earlier ones of a
    /// hook that must run after it.
    fn position(cases: &[Case], nth: usize, seen: &mut Vec<usize>) -> (i32, i32) {
        let (_, ord, of_set, _) = cases[nth];
        let stage = match of_set {
            Some(0) => -1,
            Some(1) => 1,
            _ => 0,
        };
        seen.push(nth);
        let mut earliest = (stage, ord);
        for target in 0..cases.len() {
            if names(&cases[nth], false, &cases[target]) && !seen.contains(&target) {
                earliest = earliest.min(position(cases, target, seen));
            }
        }
        earliest
    }

    /// Finds the order naively: repeatedly takes the best hook that waits for no remaining hook.
    fn naive_order(cases: &[Case]) -> Option<Vec<usize>> {
        let mut left: Vec<usize> = (0..cases.len()).collect();
        let mut placed = Vec::new();
        while !left.is_empty() {
            let free = left.iter().filter(|&&nth| !left.iter().any(|&other| requires(cases, other, nth)));
            let best = *free.min_by_key(|&&nth| (position(cases, nth, &mut Vec::new()), nth))?;
            left.retain(|nth| *nth != best);
            placed.push(best);
        }
        Some(placed)
    }

    /// Returns, for each hook, whether it is on a cycle.
    fn on_a_cycle(cases: &[Case]) -> Vec<bool> {
        let count = cases.len();
        let mut reach: Vec<Vec<bool>> =
            (0..count).map(|one| (0..count).map(|other| requires(cases, one, other)).collect()).collect();
        for (via, from, to) in
            (0..count * count * count).map(|n| (n / count / count, n / count % count, n % count))
        {
            reach[from][to] |= reach[from][via] && reach[via][to];
        }
        (0..count).map(|nth| reach[nth][nth]).collect()
    }

    fn cases() -> impl Strategy<Value = Vec<Case>> {
        let constraints = prop::collection::vec((any::<bool>(), 0..12_usize), 0..3);
        prop::collection::vec((0..9_usize, -2..3, prop::option::of(0..3_usize), constraints), 0..12)
    }

    /// Returns all permutations of this many items.
    fn permutations(count: usize) -> Vec<Vec<usize>> {
        let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
        let shorter = permutations(last);
        let longer = shorter.iter().flat_map(|order| {
            (0..count).map(move |at| {
                let mut order = order.clone();
                order.insert(at, last);
                order
            })
        });
        longer.collect()
    }

    #[test]
    fn ties_between_hooks_that_both_wait_for_are_tried() {
        let display = 10; // the set, after the types
        let cases: Vec<Case> = vec![
            (4, 0, Some(1), vec![]),
            (0, 0, Some(0), vec![(true, display)]),
            (1, 0, Some(1), vec![]),
            (2, 0, None, vec![(true, 4)]),
        ];
        let hooks: Vec<_> = cases.iter().map(hook).collect();
        // If the third hook runs before the first one, the second and the fourth are ready at once.
        assert!(!is_decided(&hooks, 3, 1) && !is_decided(&hooks, 1, 3));
        assert!(is_decided(&hooks, 0, 3) && is_decided(&hooks, 2, 1));
    }

    #[test]
    fn a_search_with_too_many_states_ends_and_constraints_still_decide() {
        const PAIRS: usize = 20;
        let [early, late] = [2 * PAIRS, 2 * PAIRS + 1];
        let constraint = |hook| (hook, ConstraintRef { hook, index: 0 });
        // The first hook of each pair runs before the second one, which runs before both hooks.
        let mut followers: Vec<_> = (0..PAIRS)
            .flat_map(|pair| [vec![constraint(2 * pair + 1)], vec![constraint(early), constraint(late)]])
            .collect();
        followers.extend([vec![], vec![]]);
        let mut graph = Graph { followers, preceded_by: HashMap::new() };
        let mut positions = vec![(stages::DEFAULT, 0); 2 * PAIRS + 2];
        positions[early].1 = 1;
        assert!(graph.can_precede(early, late, &positions), "after too many states, the answer is yes");
        graph.followers[late].push(constraint(early));
        assert!(!graph.can_precede(early, late, &positions));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_order_is_decided_if_it_does_not_depend_on_the_order_of_the_list(cases in cases().prop_map(|mut cases| {
            cases.truncate(5);
            cases
        })) {
            let hooks: Vec<_> = cases.iter().enumerate().map(|(nth, case)| {
                let mut hook = hook(case);
                hook.definition.origin.line = u32::try_from(nth).unwrap();
                hook
            }).collect();
            let orders: Vec<Vec<usize>> = permutations(hooks.len()).into_iter().filter_map(|listed| {
                let ordered = order(listed.into_iter().map(|nth| hooks[nth].clone()).collect()).ok()?;
                Some(ordered.iter().map(|hook| hook.definition.origin.line as usize).collect())
            }).collect();
            prop_assume!(!orders.is_empty());
            for (first, second) in (0..hooks.len()).flat_map(|first| (0..hooks.len()).map(move |second| (first, second))) {
                if first == second {
                    continue;
                }
                let place = |order: &[usize], hook| order.iter().position(|nth| *nth == hook);
                let always = orders.iter().all(|order| place(order, first) < place(order, second));
                prop_assert_eq!(is_decided(&hooks, first, second), always, "{} before {}", first, second);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn order_matches_the_naive_implementation(cases in cases()) {
            let hooks: Vec<_> = cases.iter().enumerate().map(|(nth, case)| {
                let mut hook = hook(case);
                hook.definition.origin.line = u32::try_from(nth).unwrap();
                hook
            }).collect();
            match (order(hooks), naive_order(&cases)) {
                (Ok(ordered), Some(expected)) => {
                    let lines: Vec<_> = ordered.iter().map(|hook| hook.definition.origin.line as usize).collect();
                    prop_assert_eq!(lines, expected);
                }
                (Err(messages), None) => {
                    // Every reported hook is on a cycle, and every cycle includes a reported hook.
                    let on_cycle = on_a_cycle(&cases);
                    let text = messages.join("\n");
                    let is_reported = |nth: usize| text.contains(&format!("(f:{nth})"));
                    for (nth, on_cycle) in on_cycle.into_iter().enumerate() {
                        prop_assert!(!is_reported(nth) || on_cycle, "{} is not on a cycle: {}", nth, text);
                    }
                    let mut rest = cases.clone();
                    for nth in (0..cases.len()).filter(|nth| is_reported(*nth)).rev() {
                        rest.remove(nth);
                    }
                    prop_assert!(naive_order(&rest).is_some(), "an unreported cycle: {}", text);
                }
                (ordered, expected) => prop_assert!(false, "{:?} but {:?}", ordered.map(|hooks| hooks.len()), expected),
            }
        }
    }
}
