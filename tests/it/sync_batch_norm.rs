//! `SyncBatchNorm`: batch normalization over the rows of all ranks.

use trainer::distributed::sync_batch_norm;
use trainer::prelude::*;

use crate::ranks_support::{errors, same_as_one};

#[test]
fn synchronized_batch_norm_on_any_number_of_ranks_matches_a_single_process() {
    // The last of seven batches has one row: the other ranks borrow a row.
    same_as_one(&["norms"], &[2, 3, 4, 7]);
}

#[test]
fn synchronized_batch_norm_is_exact_with_streams_token_weights_windows_and_sharded_state() {
    // The stream has batches of two to five rows.
    same_as_one(&["norms stream", "norms tokens accumulate=3", "norms sharded"], &[3]);
}

#[test]
fn the_other_ranks_end_when_a_rank_is_killed_between_synchronized_layers() {
    let errors = errors(2, "norms accumulate=3 kill=1", &[]);
    assert!(errors[0].contains("rank 0 lost contact with the other ranks in `"), "{errors:?}");
}

/// Returns the output, the running statistics and the gradients of a layer for an input.
fn results(layer: &dyn nn::ModuleT, vs: &nn::VarStore, input: &Tensor) -> Vec<Tensor> {
    let input = input.detach().set_requires_grad(true);
    let train = layer.forward_t(&input, true);
    (&train * train.detach().cos()).sum(Kind::Double).backward();
    let eval = layer.forward_t(&input, false);
    let mut variables: Vec<_> = vs.variables().into_iter().collect();
    variables.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut all = vec![train, eval, input.grad()];
    for (_, variable) in variables {
        all.push(variable.grad());
        all.push(variable);
    }
    all.into_iter().filter(Tensor::defined).collect()
}

#[test]
fn in_one_process_synchronized_batch_norm_matches_tch() {
    type Build = fn(nn::Path<'_>) -> Box<dyn nn::ModuleT>;
    let cases: [(&[i64], Build); 3] = [
        (&[7, 3], |path| Box::new(nn::batch_norm1d(path, 3, Default::default()))),
        (&[7, 3, 5], |path| Box::new(nn::batch_norm1d(path, 3, Default::default()))),
        (&[7, 3, 5, 2], |path| Box::new(nn::batch_norm2d(path, 3, Default::default()))),
    ];
    for (shape, build) in cases {
        let sync: Build = |path| Box::new(sync_batch_norm(path, 3, Default::default()));
        let numel = shape.iter().product::<i64>();
        let input = (Tensor::arange(numel, (Kind::Double, Device::Cpu)) * 0.7).sin().view(shape);
        let [own, tch] = [sync, build].map(|build| {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let layer = build(vs.root() / "norm");
            vs.double(); // tch creates buffers in single precision
            let _ = tch::no_grad(|| vs.variables()["norm.weight"].shallow_clone().fill_(1.5));
            let names: Vec<String> = {
                let mut names: Vec<String> = vs.variables().into_keys().collect();
                names.sort();
                names
            };
            (names, results(layer.as_ref(), &vs, &input))
        });
        assert_eq!(own.0, tch.0);
        for (one, other) in own.1.iter().zip(&tch.1) {
            assert_eq!(one.size(), other.size());
            assert!(crate::support::distance(one, other) <= 1e-12, "{shape:?}");
        }
    }
}
