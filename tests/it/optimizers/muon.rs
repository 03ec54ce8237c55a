//! Muon: the rounding of its iteration in bf16 and float.

use super::*;

/// A task whose weights are matrices with gradients that the test chooses.
struct Matrices {
    vs: nn::VarStore,
    weights: Vec<Tensor>,
    grads: Vec<Tensor>,
}

impl Task for Matrices {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn pred(&mut self, _: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(self.weights.iter().zip(&self.grads).map(|(weight, grad)| (weight * grad).sum(Kind::Float)).sum())
    }

    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.shallow_clone())
    }
}

/// Returns the updates that one step of Muon, with a learning rate of 1, adds to zero matrices for
/// these gradients.
fn muon_updates(grads: &[Tensor], iterations: u32, full_precision: bool) -> Vec<Tensor> {
    let vs = nn::VarStore::new(device());
    let weights: Vec<_> = grads
        .iter()
        .enumerate()
        .map(|(nth, grad)| vs.root().zeros(&format!("{nth}"), &grad.size()))
        .collect();
    let task = Matrices {
        vs,
        weights: weights.iter().map(Tensor::shallow_clone).collect(),
        grads: grads.iter().map(Tensor::shallow_clone).collect(),
    };
    let muon = Muon::new(1.0).weight_decay(0.0).ns_steps(iterations).full_precision(full_precision);
    let mut trainer = Trainer::builder(task).optimizer(muon).discover(Discover::None).build().unwrap();
    trainer.fit(&mut from_fn(|_| [Tensor::zeros([1], (Kind::Float, device()))]), None).unwrap();
    let update = |weight: &Tensor| {
        let size = weight.size();
        weight.detach() / -(size[0] as f64 / size[1] as f64).max(1.0).sqrt()
    };
    weights.iter().map(update).collect()
}

/// Returns the singular values of a matrix after Jordan's iteration in double, and the largest
/// deviation in Frobenius norm of an iteration whose numbers have a relative rounding error of at
/// most `u`.
///
/// One iteration on a matrix with the singular values `s` rounds three times: the Gram matrix, by
/// at most `u ‖s²‖`; the polynomial of it, by `u ‖b s² + c s⁴‖`; and the result, by `u ‖p(s)‖`. The
/// second and the third product multiply the earlier errors by at most `|b| + 2 |c| max s²` and
/// `max s`. One iteration multiplies an earlier error by at most the largest divided difference of
/// `p`. A factor of 1.5 covers products of errors, and the sums within matrix products, which are
/// in float.
fn iterated(singular_values: &[f64], iterations: u32, u: f64) -> (Vec<f64>, f64) {
    let a = 3.4445;
    let b = -4.7750;
    let c = 2.0315;
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let frobenius = norm(&mut singular_values.iter().copied());
    let mut s: Vec<f64> = singular_values.iter().map(|value| value / frobenius).collect();
    // The update, its norm and the quotient are rounded, by `u` each.
    let mut error = 3.0 * u;
    for _ in 0..iterations {
        let p = |s: f64| a * s + b * s.powi(3) + c * s.powi(5);
        let largest = s.iter().copied().fold(0.0, f64::max);
        let gram = u * norm(&mut s.iter().map(|s| s * s));
        let polynomial = gram * (b.abs() + 2.0 * c * largest * largest)
            + u * norm(&mut s.iter().map(|s| b * s * s + c * s.powi(4)));
        let rounding = polynomial * largest + u * norm(&mut s.iter().map(|s| p(*s)));
        let mut slope = 0.0_f64;
        for (nth, one) in s.iter().enumerate() {
            slope = slope.max((a + 3.0 * b * one * one + 5.0 * c * one.powi(4)).abs());
            for other in &s[..nth] {
                if (one - other).abs() > 1e-6 {
                    slope = slope.max(((p(*one) - p(*other)) / (one - other)).abs());
                }
                slope = slope.max(((p(*one) + p(*other)) / (one + other)).abs());
            }
        }
        error = slope * error + rounding;
        s = s.iter().map(|s| p(*s)).collect();
    }
    (s, 1.5 * error)
}

#[test]
fn muon_deviates_from_the_exact_iteration_by_at_most_its_rounding() {
    tch::set_num_threads(1);
    // Gradients with known singular values, none of them small, because the iteration amplifies the
    // rounding errors of small ones. Three are computed as one batch, because their shapes are
    // equal or transposed.
    let sizes = [[6, 6], [4, 12], [12, 4], [4, 12]];
    let scaled = |nth: usize, values: &[f64]| {
        let least = values.len() as i64;
        let wave = |rows: i64, seed: f64| {
            let values = Tensor::arange(rows * least, (Kind::Double, device())) * (seed + nth as f64);
            Tensor::linalg_qr(&values.sin().view([rows, least]), "reduced").0
        };
        let left = wave(sizes[nth][0], 1.3);
        let right = wave(sizes[nth][1], 2.9);
        (left * Tensor::from_slice(values)).matmul(&right.tr())
    };
    let values = |nth: usize| -> Vec<f64> {
        let least = sizes[nth][0].min(sizes[nth][1]);
        (0..least).map(|value| 1.0 + 0.1 * value as f64 + 0.05 * nth as f64).collect()
    };
    let grads: Vec<_> = (0..sizes.len()).map(|nth| scaled(nth, &values(nth)).to_kind(Kind::Float)).collect();

    // Half a unit in the last place: of bf16, and of float with sums of up to 12 products.
    let of_bf16 = 1.0 / 256.0;
    let of_float = 12.0 * f64::from(f32::EPSILON);
    // For more iterations in bf16, the bound would be too wide to be useful.
    for (iterations, full_precision, u) in
        [(1, false, of_bf16), (2, false, of_bf16), (1, true, of_float), (5, true, of_float)]
    {
        let updates = muon_updates(&grads, iterations, full_precision);
        for (nth, update) in updates.iter().enumerate() {
            let (iterated, bound) = iterated(&values(nth), iterations, u);
            let exact = scaled(nth, &iterated);
            let distance = (update.to_kind(Kind::Double) - &exact).norm().double_value(&[]);
            let (bound, distance) =
                [bound, distance].map(|norm| norm / exact.norm().double_value(&[])).into();
            let size = sizes[nth];
            let what = format!("{size:?}, {iterations} iterations, full precision {full_precision}");
            println!("{what}: within {distance:.1e} of {bound:.1e}");
            assert!(distance <= bound, "{what}: {distance} is above {bound}");
            assert!(bound < 0.5, "{what}: the bound {bound} is too wide to be useful");
            // If the factor by shape is 1, the update is unchanged since the iteration, so its
            // precision is known.
            let rounded = update.to_kind(Kind::BFloat16).to_kind(Kind::Float);
            assert!(
                size[0] > size[1] || full_precision != update.equal(&rounded),
                "{what}: the iteration ran in the other precision"
            );
        }
    }
}
