//! Tests of [`States`].

use super::*;

fn states() -> States {
    let states = [
        ("sum", StateReduction::Sum),
        ("min", StateReduction::Min),
        ("max", StateReduction::Max),
        ("all", StateReduction::Concat),
    ];
    States::new(states)
}

fn add(states: &mut States, numbers: &[f64]) {
    let tensor = Tensor::from_slice(numbers);
    states.update("sum", tensor.sum(Kind::Double));
    states.update("min", tensor.min());
    states.update("max", tensor.max());
    states.update("all", tensor);
}

#[test]
fn each_state_is_merged_by_its_reduction() {
    let (mut one, mut two) = (states(), states());
    add(&mut one, &[1.0, 4.0]);
    add(&mut one, &[3.0]);
    add(&mut two, &[-2.0, 9.0]);
    one.merge(&two).unwrap();
    one.merge(&states()).unwrap(); // without values
    assert_eq!(one.floats("sum").unwrap(), [15.0]);
    assert_eq!(one.floats("min").unwrap(), [-2.0]);
    assert_eq!(one.floats("max").unwrap(), [9.0]);
    assert_eq!(one.floats("all").unwrap(), [1.0, 4.0, 3.0, -2.0, 9.0]);
    one.reset();
    assert!(one.is_empty() && one.floats("sum").unwrap().is_empty());
}

#[test]
fn saved_states_are_restored() {
    let mut one = states().with_children([states(), states()]);
    add(&mut one, &[1.0, 2.0]);
    add(&mut one.children_mut()[1], &[5.0]);
    let mut two = one.blank();
    assert!(two.is_empty());
    two.load(&one.tensors()).unwrap();
    assert_eq!(two.tensors().len(), 8);
    assert_eq!(two.children()[1].floats("all").unwrap(), [5.0]);
    let error = states().load(&one.tensors()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the metric declares no state `1/all`: load the values of a metric with the same type and settings"
    );
}

#[test]
fn counts_convert_to_tensors_and_back() {
    let mut states = States::new([("n", StateReduction::Sum), ("best", StateReduction::Max)]).keep("best");
    states.counts_mut("n", 2).unwrap()[1] += 3;
    states.update("n", Tensor::from_slice(&[1i64, 1]));
    states.counts_mut("n", 2).unwrap()[0] += 1;
    states.update("best", Tensor::from(2.0));
    assert_eq!(states.ints("n").unwrap(), [2, 4]);
    states.reset();
    assert!(states.is_empty(), "a kept state is not data");
    assert_eq!(states.floats("best").unwrap(), [2.0]);
}

#[test]
fn merging_different_states_is_an_error() {
    let mut states = states();
    let error = states.merge(&States::new([("sum", StateReduction::Max)])).unwrap_err();
    assert!(error.to_string().contains("different states"), "{error}");
}
