use tch::{Device, Kind, Reduction, Tensor};

use super::{Head, LinearCrossEntropy, linear_cross_entropy};
use crate::data::IGNORED;
use crate::libtorch::Autocast;

const WIDTH: i64 = 12;

/// Operands of the loss: hidden states, a weight, a bias and class weights in `f64`, and targets.
struct Case {
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    class_weights: Tensor,
    targets: Tensor,
}

impl Case {
    fn new(rows: i64, classes: i64) -> Self {
        tch::manual_seed(3);
        let normal = |size: &[i64]| Tensor::randn(size, (Kind::Double, Device::Cpu));
        let targets = Tensor::randint(classes, [rows], (Kind::Int64, Device::Cpu));
        let is_ignored = Tensor::rand([rows], (Kind::Float, Device::Cpu)).lt(0.2);
        Case {
            hidden: normal(&[rows, WIDTH]),
            weight: normal(&[classes, WIDTH]),
            bias: normal(&[classes]),
            class_weights: Tensor::rand([classes], (Kind::Double, Device::Cpu)) + 0.5,
            targets: targets.masked_fill(&is_ignored, IGNORED),
        }
    }
}

/// Which options a test sets.
#[derive(Clone, Copy, Debug)]
struct Options {
    bias: bool,
    weights: bool,
    smoothing: f64,
}

fn all_options() -> impl Iterator<Item = Options> {
    [false, true].into_iter().flat_map(|bias| {
        [false, true].into_iter().flat_map(move |weights| {
            [0.0, 0.1, 1.0].into_iter().map(move |smoothing| Options { bias, weights, smoothing })
        })
    })
}

/// Returns the loss, and the gradients of the hidden states, the weight and the bias, in `f64`.
/// `scale` is that of the loss.
fn computed(case: &Case, options: Options, kind: Kind, scale: f64, by_head: bool) -> Vec<Tensor> {
    let leaf = |tensor: &Tensor| tensor.to_kind(kind).detach().copy().set_requires_grad(true);
    let [hidden, weight, bias] = [&case.hidden, &case.weight, &case.bias].map(leaf);
    let class_weights = case.class_weights.to_kind(if kind == Kind::Double { kind } else { Kind::Float });
    let loss = if by_head {
        let mut how = LinearCrossEntropy::new().label_smoothing(options.smoothing);
        if options.bias {
            how = how.bias(&bias);
        }
        if options.weights {
            how = how.class_weights(&class_weights);
        }
        linear_cross_entropy(&hidden, &weight, &case.targets, &how).unwrap()
    } else {
        let logits = hidden.linear(&weight, options.bias.then_some(&bias));
        let logits = if kind == Kind::Double { logits } else { logits.to_kind(Kind::Float) };
        let weights = options.weights.then_some(&class_weights);
        logits.cross_entropy_loss(&case.targets, weights, Reduction::Mean, IGNORED, options.smoothing)
    };
    (&loss * scale).backward();
    let gradients = [hidden, weight, bias].map(|leaf| {
        let grad = leaf.grad();
        if grad.defined() { grad } else { leaf.zeros_like() }
    });
    [loss].into_iter().chain(gradients).map(|tensor| tensor.detach().to_kind(Kind::Double)).collect()
}

/// Returns the largest difference, relative to the largest element.
fn distance(one: &Tensor, other: &Tensor) -> f64 {
    if one.numel() == 0 {
        return 0.0;
    }
    let largest = other.abs().max().double_value(&[]).max(1e-300);
    (one - other).abs().max().double_value(&[]) / largest
}

#[test]
fn losses_and_gradients_are_those_of_whole_logits() {
    // More rows than a chunk, which is 512 rows of this number of classes, and one chunk.
    for (rows, classes) in [(1100, 16_385), (700, 5), (9, 3), (40, 1)] {
        let case = Case::new(rows, classes);
        for options in all_options() {
            for scale in [1.0, 1024.0] {
                let own = computed(&case, options, Kind::Double, scale, true);
                let whole = computed(&case, options, Kind::Double, scale, false);
                for (nth, (own, whole)) in own.iter().zip(&whole).enumerate() {
                    let far = if classes == 1 {
                        (own - whole).abs().max().double_value(&[])
                    } else {
                        distance(own, whole)
                    };
                    assert!(far < 1e-12, "{rows} rows, {classes} classes, {options:?}, {nth}: {far}");
                }
            }
            if rows > 1000 {
                break; // the other options with a case that is fast
            }
        }
    }
}

#[test]
fn single_precision_is_as_exact_as_with_whole_logits() {
    let case = Case::new(1100, 8_000);
    for options in [
        Options { bias: false, weights: false, smoothing: 0.0 },
        Options { bias: true, weights: true, smoothing: 0.1 },
    ] {
        let exact = computed(&case, options, Kind::Double, 1.0, false);
        let own = computed(&case, options, Kind::Float, 1.0, true);
        assert!(distance(&own[0], &exact[0]) < 1e-6);
        for (own, exact) in own.iter().zip(&exact).skip(1) {
            assert!(distance(own, exact) < 5e-6, "{options:?}: {}", distance(own, exact));
        }
    }
}

#[test]
fn autocast_is_as_exact_as_with_whole_logits() {
    let case = Case::new(1100, 8_000);
    let mean =
        |one: &Tensor, other: &Tensor| (one - other).square().mean(Kind::Double).double_value(&[]).sqrt();
    for options in [
        Options { bias: false, weights: false, smoothing: 0.0 },
        Options { bias: true, weights: true, smoothing: 0.1 },
    ] {
        let exact = computed(&case, options, Kind::Double, 1.0, false);
        let [own, whole] = [true, false].map(|by_head| {
            let _autocast = Autocast::enable(Device::Cpu, Kind::BFloat16).unwrap();
            computed(&case, options, Kind::Float, 1.0, by_head)
        });
        for nth in 1..4 {
            let (own, whole) = (mean(&own[nth], &exact[nth]), mean(&whole[nth], &exact[nth]));
            assert!(own <= 1.1 * whole, "{options:?}, {nth}: {own} and {whole}");
        }
        let [own, whole] = [&own, &whole].map(|all| distance(&all[0], &exact[0]));
        assert!(own <= 1.1 * whole + 1e-4, "{own} and {whole}");
    }
}

#[test]
fn rows_that_are_not_contiguous_and_have_several_dimensions_are_read() {
    let case = Case::new(60, 7);
    let (hidden, targets) = (case.hidden.view([4, 15, WIDTH]), case.targets.view([4, 15]));
    let (hidden, targets) = (hidden.transpose(0, 1), targets.transpose(0, 1));
    assert!(!hidden.is_contiguous());
    let of = |hidden: &Tensor, targets: &Tensor| {
        linear_cross_entropy(hidden, &case.weight, targets, &LinearCrossEntropy::new()).unwrap()
    };
    assert!(distance(&of(&hidden, &targets), &of(&case.hidden, &case.targets)) < 1e-12);
}

#[test]
fn a_batch_without_a_row_that_counts_has_no_gradient() {
    for rows in [0, 5] {
        let case =
            Case { targets: Tensor::full([rows], IGNORED, (Kind::Int64, Device::Cpu)), ..Case::new(rows, 4) };
        let all =
            computed(&case, Options { bias: true, weights: false, smoothing: 0.1 }, Kind::Double, 1.0, true);
        assert!(all[0].double_value(&[]).is_nan());
        for gradient in &all[1..] {
            assert_eq!(gradient.abs().sum(Kind::Double).double_value(&[]), 0.0);
        }
    }
}

#[test]
fn gradients_are_computed_only_where_they_are_needed() {
    let case = Case::new(20, 6);
    let how = LinearCrossEntropy::new();
    let of =
        |hidden: &Tensor, weight: &Tensor| linear_cross_entropy(hidden, weight, &case.targets, &how).unwrap();
    assert!(!of(&case.hidden, &case.weight).requires_grad());
    let weight = case.weight.copy().set_requires_grad(true);
    let loss = tch::no_grad(|| of(&case.hidden, &weight));
    assert!(!loss.requires_grad());
    of(&case.hidden, &weight).backward();
    let whole =
        computed(&case, Options { bias: false, weights: false, smoothing: 0.0 }, Kind::Double, 1.0, false);
    assert!(distance(&weight.grad(), &whole[2]) < 1e-12);
}

#[test]
fn a_second_backward_pass_and_a_second_derivative_are_refused() {
    let case = Case::new(20, 6);
    let weight = case.weight.copy().set_requires_grad(true);
    let loss =
        || linear_cross_entropy(&case.hidden, &weight, &case.targets, &LinearCrossEntropy::new()).unwrap();
    let error = |result: Result<Vec<Tensor>, tch::TchError>| result.unwrap_err().to_string();
    let once = loss();
    Tensor::f_run_backward(&[&once], &[&weight], true, false).unwrap();
    let text = error(Tensor::f_run_backward(&[&once], &[&weight], true, false));
    assert!(text.contains("a second backward pass"), "{text}");
    assert!(text.contains("compute the loss again"), "{text}");
    let text = error(Tensor::f_run_backward(&[&loss()], &[&weight], true, true));
    assert!(text.contains("no second derivative"), "{text}");
}

#[test]
fn operands_that_do_not_fit_are_reported() {
    let case = Case::new(6, 4);
    let message = |hidden: &Tensor, targets: &Tensor, how: &LinearCrossEntropy<'_>| {
        linear_cross_entropy(hidden, &case.weight, targets, how).unwrap_err().to_string()
    };
    let plain = LinearCrossEntropy::new();
    let targets = Tensor::from_slice(&[0i64, 3, IGNORED, 4, 1, -1]);
    let text = message(&case.hidden, &targets, &plain);
    assert!(text.contains("target 4 of row 3 is not a class: expected 0 to 3"), "{text}");
    let text = message(&case.hidden, &case.targets.narrow(0, 0, 5), &plain);
    assert!(text.contains("expected integers of shape [6]"), "{text}");
    let text = message(&case.hidden.narrow(1, 0, 5), &case.targets, &plain);
    assert!(text.contains("[6, 5] and [4, 12]"), "{text}");
    let text = message(&case.hidden, &case.targets, &LinearCrossEntropy::new().bias(&case.hidden));
    assert!(text.contains("expected [4], a number for each class"), "{text}");
    let text = message(&case.hidden, &case.targets, &LinearCrossEntropy::new().label_smoothing(1.5));
    assert!(text.contains("expected a number from 0 to 1"), "{text}");
    let text = message(&case.hidden.to_kind(Kind::Float), &case.targets, &plain);
    assert!(text.contains("convert one of them"), "{text}");
    let text = message(&Tensor::new(), &case.targets, &plain);
    assert!(!text.is_empty());
}

#[test]
fn a_head_remembers_the_loss_of_each_target() {
    let case = Case::new(8, 6);
    let head = Head::new(case.hidden.shallow_clone(), &case.weight);
    assert!(head.token_losses().is_none());
    let _ = head.cross_entropy(&case.targets).unwrap();
    let logits = head.logits().unwrap();
    let each = logits.cross_entropy_loss::<Tensor>(&case.targets, None, Reduction::None, IGNORED, 0.0);
    assert!(distance(&head.token_losses().unwrap(), &each) < 1e-12);
}
