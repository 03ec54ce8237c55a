//! What a hook can reach, and what it is told.

use trainer::prelude::*;

use crate::model;

/// Counts its calls by phase.
#[derive(Default)]
struct Calls {
    train: u64,
    valid: u64,
    every: u64,
    epochs: u64,
}

#[hook]
impl Calls {
    #[hook(only = train)]
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.train += 1;
    }
    #[hook(after_step, only(valid, test))]
    fn evaluated(&mut self, cx: &mut Cx<AfterStep>) {
        assert!(matches!(cx.phase(), Phase::Valid | Phase::Test));
        self.valid += 1;
    }
    #[hook(before_step, every = 3, only = train)]
    fn each_third(&mut self, cx: &mut Cx<BeforeStep>) {
        assert_eq!((cx.step().global_step + 1) % 3, 0);
        self.every += 1;
    }
    #[hook(every = 2)]
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) {
        assert_eq!(cx.step().epoch % 2, 1);
        self.epochs += 1;
    }
}

/// Reads another hook, and itself.
struct Reader {
    train: u64,
    itself: String,
}

#[hook(ord = 1)]
impl Reader {
    fn after_fit(&mut self, cx: &mut Cx<AfterFit>) -> Result<()> {
        self.train = cx.hook::<Calls>()?.train;
        cx.hook_mut::<Calls>()?.train += 100;
        self.itself = cx.hook::<Reader>().map(|_| ()).unwrap_err().to_string();
        assert!(cx.hook::<u8>().unwrap_err().to_string().contains("has no hook `u8`: add it"));
        Ok(())
    }
}

#[hook(before_fit)]
pub(crate) fn counted(_: &mut Cx<BeforeFit>) {}

#[test]
fn hooks_keep_state_and_are_filtered_by_phase_and_count() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .epochs(4)
        .discover(Discover::None)
        .hook(Reader { train: 0, itself: String::new() })
        .hook(Calls::default())
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(12))).unwrap();
    trainer.test(&mut model::rows(4)).unwrap();
    let calls = trainer.hook::<Calls>().unwrap();
    assert_eq!((calls.train, calls.valid, calls.every, calls.epochs), (108, 13, 2, 2));
    let reader = trainer.hook::<Reader>().unwrap();
    assert_eq!(reader.train, 8);
    assert!(reader.itself.contains("it is running, or waits for the hook that is"), "{}", reader.itself);
    assert!(trainer.hook::<String>().is_none());
}

/// A generic hook type, with a lifetime-free parameter.
struct Watch<F> {
    measure: F,
    last: f64,
}

#[hook]
impl<F: FnMut(&Tensor) -> f64 + Send + 'static> Watch<F> {
    fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) {
        self.last = (self.measure)(&cx.loss());
    }
}

#[test]
fn a_hook_type_can_be_generic() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Watch { measure: |loss: &Tensor| loss.double_value(&[]), last: 0.0 })
        .on::<AfterLoss>("check", |cx| assert!(cx.loss().double_value(&[]) > 0.0))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(4), None).unwrap();
    assert!(summary.metrics.get("train/loss").unwrap() > 0.0);
}

/// A helper can be written for every moment at which something exists.
fn gradient_norm<P: HasGrads>(cx: &Cx<P>) -> f64 {
    cx.grads().map(|(_, grad)| grad.square().sum(Kind::Float).double_value(&[])).sum::<f64>().sqrt()
}

fn loss_of(cx: &Cx<AfterLoss>) -> Tensor {
    cx.loss()
}

#[test]
fn helpers_take_the_context_too() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .on::<AfterBackward>("norm", |cx| {
            let norm = gradient_norm(cx);
            cx.log("norm", norm);
        })
        .on::<AfterLoss>("loss", |cx| assert_eq!(loss_of(cx).size(), [] as [i64; 0]))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(4), None).unwrap();
    assert!(summary.metrics.get("train/norm").unwrap() > 0.0);
}

#[test]
fn a_trainer_can_move_to_another_thread() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Calls::default())
        .build()
        .unwrap();
    let summary = std::thread::spawn(move || trainer.fit(&mut model::rows(4), None)).join().unwrap().unwrap();
    assert_eq!(summary.step.global_step, 1);
}
