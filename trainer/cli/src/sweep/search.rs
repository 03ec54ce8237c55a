//! The values of the trials: a grid, or random ones.

use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Number, Value as Json};

use super::file::{Domain, Plan};

/// The number of significant digits of a random number, small enough that it is easy to read and
/// type.
const DIGITS: usize = 4;

/// Returns the values of each trial, in the order of the parameters.
pub(crate) fn trials(plan: &Plan) -> Vec<Vec<(String, Json)>> {
    match plan.trials {
        Some(count) => (0..count).map(|trial| random(plan, trial as u64)).collect(),
        None => grid(plan),
    }
}

/// Returns all combinations of the values; the last parameter changes fastest.
fn grid(plan: &Plan) -> Vec<Vec<(String, Json)>> {
    let mut trials = vec![Vec::new()];
    for (name, domain) in &plan.parameters {
        let values = domain.values().unwrap_or_default();
        let with = |trial: &Vec<(String, Json)>| {
            let one_more = |value: &Json| [trial.clone(), vec![(name.clone(), value.clone())]].concat();
            values.iter().map(one_more).collect::<Vec<_>>()
        };
        trials = trials.iter().flat_map(with).collect();
    }
    trials
}

/// Draws the values of a trial. They depend only on the seed and the number of the trial, so that
/// trials can be added later.
fn random(plan: &Plan, trial: u64) -> Vec<(String, Json)> {
    let mut random = ChaCha8Rng::seed_from_u64(plan.seed);
    random.set_stream(trial);
    let draw = |(name, domain): &(String, Domain)| {
        let value = match domain {
            Domain::Choices(values) => values[random.gen_range(0..values.len())].clone(),
            Domain::Integers(first, last) => Json::from(random.gen_range(*first..=*last)),
            Domain::Uniform(low, high) => rounded(random.gen_range(*low..*high)),
            Domain::LogUniform(low, high) => rounded(random.gen_range(low.ln()..high.ln()).exp()),
        };
        (name.clone(), value)
    };
    plan.parameters.iter().map(draw).collect()
}

fn rounded(value: f64) -> Json {
    let text = format!("{value:.*e}", DIGITS - 1);
    text.parse().ok().and_then(Number::from_f64).map_or(Json::Null, Json::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(trials: Option<usize>, parameters: Vec<(&str, Domain)>) -> Plan {
        Plan {
            folder: "runs".into(),
            trials,
            seed: 5,
            jobs: 1,
            budget: None,
            arguments: Vec::new(),
            parameters: parameters.into_iter().map(|(name, domain)| (name.to_owned(), domain)).collect(),
        }
    }

    #[test]
    fn a_grid_contains_every_combination_of_values() {
        let parameters =
            vec![("b", Domain::Choices(vec![json!(1), json!(2)])), ("a", Domain::Integers(3, 5))];
        let trials = trials(&plan(None, parameters));
        let values: Vec<_> = trials.iter().map(|trial| (trial[0].1.clone(), trial[1].1.clone())).collect();
        let expected = [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)];
        assert_eq!(values, expected.map(|(b, a)| (json!(b), json!(a))));
        assert_eq!(trials[0][0].0, "b");
    }

    #[test]
    fn random_values_are_in_range_and_adding_trials_keeps_the_first_ones() {
        let parameters = || {
            vec![
                ("uniform", Domain::Uniform(-1.0, 1.0)),
                ("rate", Domain::LogUniform(1e-4, 1e-1)),
                ("layers", Domain::Integers(1, 3)),
                ("name", Domain::Choices(vec![json!("a"), json!("b")])),
            ]
        };
        let many = trials(&plan(Some(300), parameters()));
        assert_eq!(trials(&plan(Some(7), parameters())), many[..7]);
        let numbers = |column: usize| many.iter().map(move |trial| trial[column].1.as_f64().unwrap());
        assert!(numbers(0).all(|value| (-1.0..=1.0).contains(&value)));
        assert!(numbers(1).all(|value| (1e-4..=1e-1).contains(&value)));
        // Each decade has a third of the values.
        let in_decade = numbers(1).filter(|value| *value < 1e-3).count();
        assert!((60..140).contains(&in_decade), "{in_decade}");
        for layers in 1..=3 {
            assert!(numbers(2).any(|value| value == f64::from(layers)));
        }
        assert!(many.iter().any(|trial| trial[3].1 == "a") && many.iter().any(|trial| trial[3].1 == "b"));
        // Numbers are short enough to be typed.
        assert!(many.iter().all(|trial| trial[1].1.to_string().len() <= 10), "{many:?}");
    }
}
