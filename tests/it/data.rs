//! Loaders: prefetch and workers give what one thread would, and leave no thread behind; derived batches.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use trainer::data::rand::Rng;
use trainer::data::{BatchRng, from_fn};
use trainer::prelude::*;

use crate::model;

/// Numbers with noise. Counts the batches that it made.
#[derive(Default)]
struct Noisy {
    made: AtomicUsize,
}

impl Dataset for Noisy {
    type Batch = (Tensor, Tensor);

    fn len(&self) -> usize {
        23
    }

    fn batch(&self, indices: &[usize], rng: &mut BatchRng) -> Result<(Tensor, Tensor)> {
        self.made.fetch_add(1, Ordering::SeqCst);
        let indices: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
        let noise: Vec<f64> = indices.iter().map(|_| rng.gen_range(0.0..1.0)).collect();
        Ok((Tensor::from_slice(&indices), Tensor::from_slice(&noise)))
    }
}

/// The indices and the noise of each batch of a pass.
fn drawn<L: Loader<(Tensor, Tensor)>>(mut loader: L, epoch: u64, start: u64) -> Vec<(Vec<i64>, Vec<f64>)> {
    let numbers = |batch: Result<(Tensor, Tensor)>| {
        let (indices, noise) = batch.unwrap();
        (Vec::try_from(indices).unwrap(), Vec::try_from(noise).unwrap())
    };
    loader.batches(epoch, start).unwrap().map(numbers).collect()
}

#[test]
fn batches_are_the_same_for_any_number_of_workers_and_from_any_batch_on() {
    let noisy = || DataLoader::new(Noisy::default()).batch_size(3).shuffle(7);
    for epoch in [0, 1] {
        let all = drawn(noisy(), epoch, 0);
        assert_eq!((all.len(), all[7].0.len()), (8, 2));
        assert_ne!(all[0].1, all[1].1, "each batch has noise of its own");
        for start in [0, 1, 5, 8, 100] {
            let expected = &all[start.min(8)..];
            for workers in 0..=3 {
                for depth in 1..=4 {
                    let ahead = drawn(noisy().workers(workers).prefetch(depth), epoch, start as u64);
                    assert_eq!(
                        ahead, expected,
                        "{workers} workers, {depth} ahead, from batch {start} of epoch {epoch}"
                    );
                }
                assert_eq!(drawn(noisy().workers(workers), epoch, start as u64), expected);
            }
            assert_eq!(drawn(Loader::prefetch(noisy(), 2), epoch, start as u64), expected);
        }
    }
}

#[test]
fn a_seed_is_for_the_order_another_for_the_noise() {
    let noisy = || DataLoader::new(Noisy::default()).batch_size(23);
    let of = |loader: DataLoader<Noisy>, epoch| drawn(loader, epoch, 0).remove(0);
    let ((order, noise), later) = (of(noisy().shuffle(7), 0), of(noisy().shuffle(7), 1));
    assert_ne!(later.0, order, "another order in the next epoch");
    assert_ne!(later.1, noise, "and other noise");
    assert_eq!(of(noisy().shuffle(7).seed(7), 0), (order.clone(), noise.clone()));
    let other = of(noisy().shuffle(7).seed(8), 0);
    assert_eq!(other.0, order);
    assert_ne!(other.1, noise);
    assert_eq!(of(noisy().seed(7), 0), ((0..23).collect(), noise), "in the order of the data");
    assert_eq!(of(noisy(), 0), of(noisy().seed(0), 0));

    let rows = Tensor::arange(23, (Kind::Int64, Device::Cpu));
    let mut in_memory = InMemory::new(rows).unwrap().batch_size(23).shuffle(7);
    let shuffled = in_memory.batches(0, 0).unwrap().next().unwrap().unwrap();
    assert_eq!(Vec::<i64>::try_from(shuffled).unwrap(), order, "the order of `InMemory`");
}

#[test]
fn no_more_is_made_ahead_than_was_said() {
    // (workers, ahead, what that comes to: at least one of each worker)
    for (workers, depth, ahead) in [(1, 1, 1), (1, 4, 4), (2, 3, 3), (3, 5, 5), (3, 1, 3)] {
        let noisy = Arc::new(Noisy::default());
        let mut loader = DataLoader::new(Arc::clone(&noisy)).workers(workers).prefetch(depth);
        let mut batches = loader.batches(0, 0).unwrap();
        let made = || noisy.made.load(Ordering::SeqCst);
        for taken in 1..=10 {
            drop(batches.next().unwrap().unwrap());
            while made() < taken + ahead {
                std::thread::yield_now();
            }
        }
        drop(batches); // ends the threads, so that nothing more is made
        assert_eq!(made(), 10 + ahead, "{workers} workers, {depth} ahead");
    }
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let mut stream = from_fn(move |_| {
        let count = Arc::clone(&count);
        (0..).map(move |n: i64| {
            count.fetch_add(1, Ordering::SeqCst);
            Tensor::from(n)
        })
    })
    .prefetch(2);
    let mut batches = stream.batches(0, 3).unwrap();
    assert_eq!(i64::try_from(batches.next().unwrap().unwrap()).unwrap(), 3);
    while made.load(Ordering::SeqCst) < 6 {
        std::thread::yield_now();
    }
    drop(batches);
    assert_eq!(made.load(Ordering::SeqCst), 6, "three left out, one drawn, two ahead");
}

/// Held by each thread that makes a batch, until it is gone.
struct Alive(#[allow(dead_code)] Arc<()>);

impl Drop for Alive {
    fn drop(&mut self) {
        // A thread that nobody waits for would still be seen.
        std::thread::sleep(Duration::from_millis(20));
    }
}

thread_local!(static ALIVE: RefCell<Option<Alive>> = const { RefCell::new(None) });

/// What goes wrong in the batch of index 2, once.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    Error,
    Panic,
}

/// Rows for the model. Knows of the threads that make them.
struct Watched {
    threads: Arc<()>,
    wrong: Wrong,
    went_wrong: AtomicBool,
}

impl Watched {
    fn new(wrong: Wrong) -> Self {
        Watched { threads: Arc::new(()), wrong, went_wrong: AtomicBool::new(false) }
    }

    fn batch_of(&self, index: usize) -> Result<(Tensor, Tensor)> {
        ALIVE.with_borrow_mut(|alive| _ = alive.get_or_insert_with(|| Alive(Arc::clone(&self.threads))));
        if index == 2 && !self.went_wrong.swap(true, Ordering::SeqCst) {
            match self.wrong {
                Wrong::Nothing => {}
                Wrong::Error => return Err(Error::msg("disk on fire")),
                Wrong::Panic => panic!("on purpose"),
            }
        }
        let inputs = Tensor::full([2, 4], index as f64, (Kind::Float, Device::Cpu));
        Ok((inputs, Tensor::zeros([2], (Kind::Int64, Device::Cpu))))
    }
}

impl Dataset for Watched {
    type Batch = (Tensor, Tensor);

    fn len(&self) -> usize {
        1000
    }

    fn batch(&self, indices: &[usize], _: &mut BatchRng) -> Result<(Tensor, Tensor)> {
        self.batch_of(indices[0])
    }
}

type Boxed = Box<dyn Loader<(Tensor, Tensor)>>;

/// Each kind of loader with threads, of this data, and how many it has.
fn with_threads(data: &Arc<Watched>) -> [(&'static str, Boxed); 3] {
    let of = |workers| DataLoader::new(Arc::clone(data)).workers(workers);
    let own = Arc::clone(data);
    let stream = from_fn(move |_| {
        let own = Arc::clone(&own);
        (0..1000).map(move |index| own.batch_of(index))
    });
    [
        ("prefetch", Box::new(stream.prefetch(3))),
        ("1 worker", Box::new(of(1))),
        ("3 workers", Box::new(of(3))),
    ]
}

#[test]
fn what_goes_wrong_arrives_in_its_place_and_the_next_pass_works() {
    for (wrong, said) in
        [(Wrong::Error, "disk on fire"), (Wrong::Panic, "a thread of the loader panicked: on purpose")]
    {
        for nth in 0..3 {
            let data = Arc::new(Watched::new(wrong));
            let (name, mut loader) = with_threads(&data).into_iter().nth(nth).unwrap();
            let mut trainer = model::builder()
                .on::<BeforeStep>("stops", |cx| {
                    if cx.counters().batch_idx == 5 {
                        cx.stop("enough");
                    }
                })
                .build()
                .unwrap();
            let error = trainer.fit(&mut loader, None).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("failed at train_epoch, epoch 0, batch 2: {said}"),
                "{name}"
            );
            assert_eq!(trainer.counters().batches_seen, 2, "{name}: those before it were worked on");
            assert_eq!(Arc::strong_count(&data.threads), 1, "{name}: no thread is left");
            let summary = trainer.fit(&mut loader, None).unwrap();
            assert_eq!(
                (summary.stopped.as_deref(), summary.counters.batches_seen),
                (Some("enough"), 8),
                "{name}"
            );
        }
    }
}

#[test]
fn nothing_comes_after_what_went_wrong() {
    for wrong in [Wrong::Error, Wrong::Panic] {
        let data = Arc::new(Watched::new(wrong));
        for (name, mut loader) in with_threads(&data) {
            data.went_wrong.store(false, Ordering::SeqCst);
            let mut batches = loader.batches(0, 1).unwrap();
            drop(batches.next().unwrap().unwrap());
            let error = batches.next().unwrap().unwrap_err();
            assert_eq!(matches!(error, Error::Panic(_)), wrong == Wrong::Panic, "{name}");
            assert!(batches.next().is_none() && batches.next().is_none(), "{name}");
        }
    }
}

#[test]
fn no_thread_is_left_however_a_run_ends() {
    type End = fn(&mut Cx<BeforeStep>) -> Result<()>;
    let ends: [(&str, End); 4] = [
        ("end_epoch", |cx| {
            cx.end_epoch();
            Ok(())
        }),
        ("stop", |cx| {
            cx.stop("enough");
            Ok(())
        }),
        ("error", |_| Err(Error::msg("out of luck"))),
        ("panic", |_| panic!("on purpose")),
    ];
    for (how, end) in ends {
        let data = Arc::new(Watched::new(Wrong::Nothing));
        for (name, mut loader) in with_threads(&data) {
            let seen = Arc::new(AtomicUsize::new(0));
            let (threads, most) = (Arc::downgrade(&data.threads), Arc::clone(&seen));
            let mut trainer = model::builder()
                .on::<BeforeStep>("ends", move |cx| {
                    most.fetch_max(threads.strong_count() - 1, Ordering::SeqCst);
                    if cx.counters().batch_idx == 3 { end(cx) } else { Ok(()) }
                })
                .build()
                .unwrap();
            let ended = catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut loader, None)));
            assert_eq!(ended.is_err(), how == "panic", "{name}");
            assert_eq!(Arc::strong_count(&data.threads), 1, "{name}, {how}: no thread is left");
            let threads = if name == "3 workers" { 3 } else { 1 };
            assert_eq!(seen.load(Ordering::SeqCst), threads, "{name}, {how}: they were there");
        }
    }
}

#[test]
fn a_pass_that_was_begun_and_forgotten_is_told() {
    let mut loader = from_fn(|_| (0..100).map(Tensor::from)).prefetch(1);
    let mut batches = loader.batches(0, 0).unwrap();
    drop(batches.next().unwrap().unwrap());
    std::mem::forget(batches);
    let error = loader.batches(0, 0).unwrap().next().unwrap().unwrap_err().to_string();
    assert_eq!(
        error,
        "the previous pass over this loader is still active: exhaust or drop its iterator first"
    );
    assert_eq!(Loader::<Tensor>::len(&loader), None);
}

#[test]
fn a_loader_of_nothing_ahead_is_refused() {
    let calls: [(&str, fn()); 3] = [
        ("`.prefetch(0)`: expected at least 1", || _ = model::rows(4).prefetch(0)),
        ("`.prefetch(0)`: expected at least 1", || _ = DataLoader::new(Noisy::default()).prefetch(0)),
        ("`.batch_size(0)`: expected at least 1", || _ = DataLoader::new(Noisy::default()).batch_size(0)),
    ];
    for (said, call) in calls {
        let payload = catch_unwind(call).unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&said));
    }
}

/// Rows without memory of their own.
fn rows_without_memory(count: i64) -> InMemory<Tensor> {
    InMemory::new(Tensor::zeros([1, 1], (Kind::Float, Device::Cpu)).expand([count, 1], false)).unwrap()
}

/// Announces this many samples.
struct Announced(usize);

impl Dataset for Announced {
    type Batch = Tensor;

    fn len(&self) -> usize {
        self.0
    }
    fn batch(&self, indices: &[usize], _: &mut BatchRng) -> Result<Tensor> {
        Ok(Tensor::from(indices.len() as i64))
    }
}

/// Why a pass could not begin, or its first batch not be made.
fn refused<B: Batch>(mut loader: impl Loader<B>) -> String {
    let error = match loader.batches(0, 0) {
        Ok(mut batches) => batches.next().unwrap().err(),
        Err(error) => Some(error),
    };
    error.expect("it is refused").to_string()
}

#[test]
fn rows_whose_order_does_not_fit_into_memory_are_an_error() {
    // More bytes than an address has room for, on any machine.
    let rows = 1 << 45;
    let text = "cannot hold the indices of 35184372088832 rows in memory: ";
    for error in [
        refused(rows_without_memory(rows).shuffle(1)),
        refused(DataLoader::new(Announced(1 << 45)).shuffle(1)),
        refused(DataLoader::new(Announced(1 << 45)).batch_size(usize::MAX)),
        refused(DataLoader::new(Announced(1 << 45)).batch_size(usize::MAX).workers(1)),
    ] {
        assert!(error.starts_with(text), "{error}");
    }
    let error = refused(DataLoader::new(Announced(usize::MAX)).shuffle(1));
    assert!(
        error.starts_with(&format!("cannot hold the indices of {} rows in memory: ", usize::MAX)),
        "{error}"
    );
    // Without an order there is nothing to hold.
    assert_eq!(rows_without_memory(rows).batches(3, 5).unwrap().next().unwrap().unwrap().size(), [1, 1]);
    let last = usize::MAX as u64 - 1;
    assert_eq!(
        DataLoader::new(Announced(usize::MAX)).batches(0, last).unwrap().map(Result::unwrap).count(),
        1
    );
}

#[test]
fn a_depth_beyond_the_limit_is_an_error_unless_the_pass_is_shorter() {
    let endless = || from_fn(|_| std::iter::repeat_with(|| Tensor::from(1)));
    for depth in [10_000_000_000, usize::MAX] {
        let error = refused(endless().prefetch(depth));
        assert_eq!(
            error,
            format!(
                "`.prefetch({depth})` would hold up to {depth} batches in memory: expected at most 65536"
            )
        );
        let mut known = rows_without_memory(7).prefetch(depth);
        assert_eq!(known.batches(0, 2).unwrap().map(Result::unwrap).count(), 5);
        let mut of_workers = DataLoader::new(Announced(7)).workers(2).prefetch(depth);
        assert_eq!(of_workers.batches(0, 2).unwrap().map(Result::unwrap).count(), 5);
    }
    assert_eq!(
        refused(DataLoader::new(Announced(100_000)).prefetch(70_000)),
        "`.prefetch(70000)` would hold up to 70000 batches in memory: expected at most 65536"
    );
    let mut deepest = endless().prefetch(65_536);
    assert_eq!(deepest.batches(0, 0).unwrap().take(3).map(Result::unwrap).count(), 3);
    let mut wrong = from_fn(|_| (0..3).map(Tensor::from)).with_len(0).prefetch(usize::MAX);
    assert_eq!(wrong.batches(0, 0).unwrap().map(Result::unwrap).count(), 3, "a wrong length binds nobody");
}

#[test]
fn more_workers_than_the_limit_are_an_error_unless_the_pass_is_shorter() {
    let mut few = DataLoader::new(Announced(4)).workers(usize::MAX);
    assert_eq!(few.batches(0, 0).unwrap().map(Result::unwrap).count(), 4, "one for each batch");
    assert_eq!(
        refused(DataLoader::new(Announced(1 << 45)).workers(usize::MAX)),
        format!("`.workers({})` would start 35184372088832 threads: expected at most 1024", usize::MAX)
    );
}

#[test]
fn a_length_that_is_announced_is_shown_and_binds_nobody() {
    let seen = |announced: Option<u64>, ahead: bool| {
        let stream = from_fn(|_| {
            (0..5).map(|_| {
                (
                    Tensor::ones([2, 4], (Kind::Float, Device::Cpu)),
                    Tensor::zeros([2], (Kind::Int64, Device::Cpu)),
                )
            })
        });
        let stream = if let Some(len) = announced { stream.with_len(len) } else { stream };
        let mut stream: Boxed = if ahead { Box::new(stream.prefetch(2)) } else { Box::new(stream) };
        let batches = Arc::new(AtomicUsize::new(usize::MAX));
        let note = Arc::clone(&batches);
        let mut trainer = model::builder()
            .on::<BeforeStep>("note", move |cx| {
                note.store(cx.batches().map_or(0, |batches| batches as usize), Ordering::SeqCst);
            })
            .build()
            .unwrap();
        let steps = trainer.fit(&mut stream, None).unwrap().counters.batches_seen;
        (batches.load(Ordering::SeqCst), steps)
    };
    for ahead in [false, true] {
        assert_eq!(seen(None, ahead), (0, 5));
        assert_eq!(seen(Some(5), ahead), (5, 5));
        assert_eq!(seen(Some(9), ahead), (9, 5), "the data ends before");
        assert_eq!(seen(Some(3), ahead), (3, 5), "the data goes on");
    }
}

/// Notes where it was moved to.
#[derive(Default)]
struct Noted(Vec<Device>);

impl Batch for Noted {
    fn samples(&self) -> Option<u64> {
        None
    }
    fn move_to(&mut self, device: Device) {
        self.0.push(device);
    }
    fn describe(&self, text: &mut String) {
        text.push_str("noted");
    }
}

/// No batch itself.
struct Id(u64);

#[derive(Batch)]
struct Sentences<T, S> {
    #[batch(skip)]
    id: Id,
    first: T,
    tokens: Tensor,
    r#type: Vec<T>,
    #[batch(skip)]
    source: std::marker::PhantomData<S>,
}

#[derive(Batch)]
struct Pair<T>(#[batch(skip)] Id, T, Option<Tensor>);

fn described(batch: &impl Batch) -> String {
    let mut text = String::new();
    batch.describe(&mut text);
    text
}

#[test]
fn a_derived_batch_is_that_of_its_fields() {
    let tokens = Tensor::zeros([4, 9], (Kind::Int64, Device::Cpu));
    let mut sentences = Sentences {
        id: Id(1),
        first: Noted::default(),
        tokens: tokens.shallow_clone(),
        r#type: vec![Noted::default(), Noted::default()],
        source: std::marker::PhantomData::<u8>,
    };
    assert_eq!(sentences.samples(), Some(4), "of the first field that knows");
    assert_eq!(
        described(&sentences),
        "Sentences { first: noted, tokens: Int64 [4, 9], type: [noted, noted] }"
    );
    sentences.move_to(Device::Cpu);
    for noted in sentences.r#type.iter().chain([&sentences.first]) {
        assert_eq!(noted.0, [Device::Cpu]);
    }
    assert_eq!((sentences.id.0, sentences.tokens.data_ptr()), (1, tokens.data_ptr()));

    let mut pair = Pair(Id(1), Noted::default(), Some(tokens));
    assert_eq!(pair.samples(), Some(4));
    assert_eq!(described(&pair), "Pair(noted, [Int64 [4, 9]])");
    pair.move_to(Device::Cpu);
    assert_eq!((pair.0.0, &*pair.1.0), (1, &[Device::Cpu][..]));
    assert_eq!(Pair(Id(1), 2.5, None).samples(), None);
}

#[derive(Batch, Rows)]
struct Pairs<T> {
    left: T,
    right: Tensor,
    far: [Tensor; 1],
}

/// Is the distance of two points what it is said to be?
struct Distance(nn::VarStore, nn::Linear);

impl Task for Distance {
    type Batch = Pairs<Tensor>;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, batch: &Pairs<Tensor>, _: Mode) -> Result<Tensor> {
        Ok((&batch.left - &batch.right).square().apply(&self.1).squeeze_dim(1))
    }
    fn loss(&mut self, pred: &Tensor, batch: &Pairs<Tensor>) -> Result<Tensor> {
        Ok(pred.mse_loss(&batch.far[0], Reduction::Mean))
    }
}

fn pairs(rows: i64) -> Pairs<Tensor> {
    let wave = |phase: f64| (Tensor::arange(30, (Kind::Float, Device::Cpu)) + phase).sin().view([10, 3]);
    let (left, right) = (wave(0.0), wave(2.0));
    let far = (&left - &right).square().sum_dim_intlist(1, false, Kind::Float).narrow(0, 0, rows);
    Pairs { left, right, far: [far] }
}

#[test]
fn a_model_learns_from_derived_batches_that_are_made_ahead() {
    tch::set_num_threads(1);
    let vars = nn::VarStore::new(Device::Cpu);
    let linear = nn::linear(vars.root(), 3, 1, nn::LinearConfig::default());
    let mut trainer = Trainer::builder(Distance(vars, linear))
        .optimizer(AdamW::new(0.1))
        .epochs(50)
        .discover(Discover::None)
        .build()
        .unwrap();
    let mut train = InMemory::new(pairs(10)).unwrap().batch_size(4).shuffle(1).prefetch(2);
    assert_eq!(train.len(), Some(3));
    let summary = trainer.fit(&mut train, None).unwrap();
    assert_eq!(summary.counters.samples_seen, 500);
    let losses = &summary.history["train/loss"];
    assert!(losses[49] < 0.1 * losses[0], "{losses:?}");
}

#[test]
fn derived_rows_are_cut_alike_or_told() {
    let expected = pairs(10);
    let mut loader = InMemory::new(pairs(10)).unwrap().batch_size(4).shuffle(1);
    let mut order =
        InMemory::new(Tensor::arange(10, (Kind::Int64, Device::Cpu))).unwrap().batch_size(4).shuffle(1);
    for (batch, rows) in loader.batches(0, 0).unwrap().zip(order.batches(0, 0).unwrap()) {
        let (batch, rows) = (batch.unwrap(), rows.unwrap());
        let cut = [
            (&batch.left, &expected.left),
            (&batch.right, &expected.right),
            (&batch.far[0], &expected.far[0]),
        ];
        for (part, whole) in cut {
            assert_eq!(*part, whole.index_select(0, &rows));
        }
    }
    let slice = pairs(10).slice(2, 3);
    assert_eq!((slice.samples(), &slice.right), (Some(3), &expected.right.narrow(0, 2, 3)));
    let error = InMemory::new(pairs(9)).map(drop).unwrap_err().to_string();
    assert_eq!(error, "the parts of a dataset must have the same number of rows, but they have 10, 10, 9");
}
