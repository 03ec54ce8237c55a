use trainer::prelude::*;

struct Ema(f64);

#[hook]
impl Ema {
    fn on_train_batch_end(&mut self, _outputs: Tensor, _batch_idx: u64) {}
}

struct Timer(f64);

#[hook]
impl Timer {
    fn begin(&mut self, _: &Cx<BeforeEpoch>) {}
    fn on_train_epoch_end(&mut self) {}
}

#[hook]
fn on_fit_start() {}

fn main() {}
