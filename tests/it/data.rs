//! Loaders: prefetching and workers return the batches of a single thread and leave no thread
//! behind; derived batches.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use trainer::data::rand::Rng;
use trainer::data::{Collate, RowRng, from_fn};
use trainer::prelude::*;

use crate::model;
use crate::support::device;

/// A dataset of indices with random noise, which counts the rows that it makes.
#[derive(Default)]
struct Noisy {
    made: AtomicUsize,
}

impl Dataset for Noisy {
    type Row = (i64, f64);

    fn len(&self) -> usize {
        23
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<(i64, f64)> {
        self.made.fetch_add(1, Ordering::SeqCst);
        Ok((index as i64, rng.gen_range(0.0..1.0)))
    }
}

/// Returns the indices and the noise of each batch of a pass.
fn collect_pass<L: Loader<(Tensor, Tensor)>>(
    mut loader: L,
    epoch: u64,
    start: u64,
) -> Vec<(Vec<i64>, Vec<f64>)> {
    let numbers = |batch: Result<(Tensor, Tensor)>| {
        let (indices, noise) = batch.unwrap();
        (Vec::try_from(indices).unwrap(), Vec::try_from(noise).unwrap())
    };
    loader.batches(epoch, start).unwrap().map(numbers).collect()
}

#[test]
fn batches_do_not_depend_on_workers_prefetch_depth_or_starting_batch() {
    let noisy = || DataLoader::new(Noisy::default()).batch_size(3).shuffle(7);
    for epoch in [0, 1] {
        let all = collect_pass(noisy(), epoch, 0);
        assert_eq!((all.len(), all[7].0.len()), (8, 2));
        assert_ne!(all[0].1, all[1].1, "each batch has its own noise");
        for start in [0, 1, 5, 8, 100] {
            let expected = &all[start.min(8)..];
            for workers in 0..=3 {
                for depth in 1..=4 {
                    let ahead = collect_pass(noisy().workers(workers).prefetch(depth), epoch, start as u64);
                    assert_eq!(
                        ahead, expected,
                        "{workers} workers, {depth} ahead, from batch {start} of epoch {epoch}"
                    );
                }
                assert_eq!(collect_pass(noisy().workers(workers), epoch, start as u64), expected);
            }
            assert_eq!(collect_pass(Loader::prefetch(noisy(), 2), epoch, start as u64), expected);
        }
    }
}

#[test]
fn order_and_noise_have_independent_seeds() {
    let noisy = || DataLoader::new(Noisy::default()).batch_size(23);
    let of = |loader: DataLoader<Noisy>, epoch| collect_pass(loader, epoch, 0).remove(0);
    let ((order, noise), later) = (of(noisy().shuffle(7), 0), of(noisy().shuffle(7), 1));
    assert_ne!(later.0, order, "another order in the next epoch");
    assert_ne!(later.1, noise, "and other noise");
    assert_eq!(of(noisy().shuffle(7).seed(7), 0), (order.clone(), noise.clone()));
    let other = of(noisy().shuffle(7).seed(8), 0);
    assert_eq!(other.0, order);
    assert_ne!(other.1, noise);
    assert_eq!(
        of(noisy().seed(7), 0),
        ((0..23).collect(), noise),
        "without `shuffle`, the order of the data"
    );
    assert_eq!(of(noisy(), 0), of(noisy().seed(0), 0));

    let rows = Tensor::arange(23, (Kind::Int64, device()));
    let mut in_memory = InMemory::new(rows).unwrap().batch_size(23).shuffle(7);
    let shuffled = in_memory.batches(0, 0).unwrap().next().unwrap().unwrap();
    assert_eq!(Vec::<i64>::try_from(shuffled).unwrap(), order, "the order of `InMemory`");
}

#[test]
fn lookahead_is_bounded_by_the_prefetch_depth() {
    // (workers, prefetch depth, resulting lookahead: at least one batch for each worker)
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
        drop(batches); // joins the threads, so the count is final
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
    assert_eq!(made.load(Ordering::SeqCst), 6, "three skipped, one drawn, two ahead");
}

/// Held by each thread that makes a batch, until the thread ends.
struct Alive(#[allow(dead_code)] Arc<()>);

impl Drop for Alive {
    fn drop(&mut self) {
        // Delays the end of the thread, so that a thread that is not joined is still counted.
        std::thread::sleep(Duration::from_millis(20));
    }
}

thread_local!(static ALIVE: RefCell<Option<Alive>> = const { RefCell::new(None) });

/// The failure of the batch with index 2, which occurs once.
#[derive(Clone, Copy, PartialEq)]
enum Failure {
    None,
    Error,
    Panic,
}

/// A dataset for the model, which tracks the threads that make its batches.
struct Watched {
    threads: Arc<()>,
    failure: Failure,
    has_failed: AtomicBool,
}

impl Watched {
    fn new(failure: Failure) -> Self {
        Watched { threads: Arc::new(()), failure, has_failed: AtomicBool::new(false) }
    }

    fn batch_of(&self, index: usize) -> Result<(Tensor, Tensor)> {
        ALIVE.with_borrow_mut(|alive| _ = alive.get_or_insert_with(|| Alive(Arc::clone(&self.threads))));
        if index == 2 && !self.has_failed.swap(true, Ordering::SeqCst) {
            match self.failure {
                Failure::None => {}
                Failure::Error => return Err(Error::msg("disk on fire")),
                Failure::Panic => panic!("on purpose"),
            }
        }
        let inputs = Tensor::full([2, 4], index as f64, (Kind::Float, device()));
        Ok((inputs, Tensor::zeros([2], (Kind::Int64, device()))))
    }
}

impl Dataset for Watched {
    type Row = OneBatch;

    fn len(&self) -> usize {
        1000
    }

    fn row(&self, index: usize, _: &mut RowRng) -> Result<OneBatch> {
        self.batch_of(index).map(OneBatch)
    }
}

/// A row that is a batch already.
struct OneBatch((Tensor, Tensor));

impl Collate for OneBatch {
    type Batch = (Tensor, Tensor);

    fn collate(rows: Vec<OneBatch>) -> Result<(Tensor, Tensor)> {
        Ok(rows.into_iter().next().expect("there is a row").0)
    }
}

type Boxed = Box<dyn Loader<(Tensor, Tensor)>>;

/// Returns each kind of loader with threads over this data, by name.
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
fn a_worker_failure_surfaces_at_its_batch_and_the_next_pass_succeeds() {
    for (failure, expected) in
        [(Failure::Error, "disk on fire"), (Failure::Panic, "a thread of the loader panicked: on purpose")]
    {
        for nth in 0..3 {
            let data = Arc::new(Watched::new(failure));
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
                format!("failed at train_epoch, epoch 0, batch 2: {expected}"),
                "{name}"
            );
            assert_eq!(trainer.counters().batches_seen, 2, "{name}: the batches before it were trained on");
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
fn a_pass_ends_after_a_worker_failure() {
    for failure in [Failure::Error, Failure::Panic] {
        let data = Arc::new(Watched::new(failure));
        for (name, mut loader) in with_threads(&data) {
            data.has_failed.store(false, Ordering::SeqCst);
            let mut batches = loader.batches(0, 1).unwrap();
            drop(batches.next().unwrap().unwrap());
            let error = batches.next().unwrap().unwrap_err();
            assert_eq!(matches!(error, Error::Panic(_)), failure == Failure::Panic, "{name}");
            assert!(batches.next().is_none() && batches.next().is_none(), "{name}");
        }
    }
}

#[test]
fn no_worker_thread_outlives_a_run_however_it_ends() {
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
        let data = Arc::new(Watched::new(Failure::None));
        for (name, mut loader) in with_threads(&data) {
            let seen = Arc::new(AtomicUsize::new(0));
            let threads = Arc::downgrade(&data.threads);
            let most = Arc::clone(&seen);
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
            assert_eq!(
                seen.load(Ordering::SeqCst),
                threads,
                "{name}, {how}: number of threads while running"
            );
        }
    }
}

#[test]
fn a_leaked_pass_is_reported_when_the_next_begins() {
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
fn zero_prefetch_depth_and_zero_batch_size_panic() {
    let calls: [(&str, fn()); 3] = [
        ("`.prefetch(0)`: expected at least 1", || _ = model::rows(4).prefetch(0)),
        ("`.prefetch(0)`: expected at least 1", || _ = DataLoader::new(Noisy::default()).prefetch(0)),
        ("`.batch_size(0)`: expected at least 1", || _ = DataLoader::new(Noisy::default()).batch_size(0)),
    ];
    for (expected, call) in calls {
        let payload = catch_unwind(call).unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&expected));
    }
}

/// Returns rows that share the memory of a single number.
fn rows_without_memory(count: i64) -> InMemory<Tensor> {
    InMemory::new(Tensor::zeros([1, 1], (Kind::Float, device())).expand([count, 1], false)).unwrap()
}

/// A dataset with the given number of rows.
struct Announced(usize);

impl Dataset for Announced {
    type Row = i64;

    fn len(&self) -> usize {
        self.0
    }
    fn row(&self, _: usize, _: &mut RowRng) -> Result<i64> {
        Ok(0)
    }
}

/// Returns the error that a loader returns when a pass begins or for its first batch.
fn refused<B: Batch>(mut loader: impl Loader<B>) -> String {
    let error = match loader.batches(0, 0) {
        Ok(mut batches) => batches.next().unwrap().err(),
        Err(error) => Some(error),
    };
    error.expect("it is refused").to_string()
}

#[test]
fn row_indices_that_exceed_memory_are_an_error() {
    // The indices take 2^48 bytes, more than a process can allocate.
    let rows = 1 << 45;
    let text = "cannot hold 35184372088832 rows or their indices in memory: ";
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
        error.starts_with(&format!("cannot hold {} rows or their indices in memory: ", usize::MAX)),
        "{error}"
    );
    // Without shuffling, no indices are stored.
    assert_eq!(rows_without_memory(rows).batches(3, 5).unwrap().next().unwrap().unwrap().size(), [1, 1]);
    let last = usize::MAX as u64 - 1;
    assert_eq!(
        DataLoader::new(Announced(usize::MAX)).batches(0, last).unwrap().map(Result::unwrap).count(),
        1
    );
}

#[test]
fn a_prefetch_depth_above_the_limit_is_an_error_unless_the_pass_is_shorter() {
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
    let mut misannounced = from_fn(|_| (0..3).map(Tensor::from)).with_len(0).prefetch(usize::MAX);
    assert_eq!(
        misannounced.batches(0, 0).unwrap().map(Result::unwrap).count(),
        3,
        "an announced length is not enforced"
    );
}

#[test]
fn a_worker_count_above_the_limit_is_an_error_unless_the_pass_is_shorter() {
    let mut few = DataLoader::new(Announced(4)).workers(usize::MAX);
    assert_eq!(
        few.batches(0, 0).unwrap().map(Result::unwrap).count(),
        4,
        "at most one worker for each batch"
    );
    assert_eq!(
        refused(DataLoader::new(Announced(1 << 45)).workers(usize::MAX)),
        format!("`.workers({})` would start 35184372088832 threads: expected at most 1024", usize::MAX)
    );
}

#[test]
fn an_announced_length_is_shown_but_not_enforced() {
    let seen = |announced: Option<u64>, ahead: bool| {
        let stream = from_fn(|_| {
            (0..5).map(|_| {
                (Tensor::ones([2, 4], (Kind::Float, device())), Tensor::zeros([2], (Kind::Int64, device())))
            })
        });
        let stream = if let Some(len) = announced { stream.with_len(len) } else { stream };
        let mut stream: Boxed = if ahead { Box::new(stream.prefetch(2)) } else { Box::new(stream) };
        let batches = Arc::new(AtomicUsize::new(usize::MAX));
        let note = Arc::clone(&batches);
        let mut trainer = model::builder()
            .on::<BeforeStep>("note", move |cx| {
                note.store(cx.plan().batches.map_or(0, |batches| batches as usize), Ordering::SeqCst);
            })
            .build()
            .unwrap();
        let steps = trainer.fit(&mut stream, None).unwrap().counters.batches_seen;
        (batches.load(Ordering::SeqCst), steps)
    };
    for ahead in [false, true] {
        assert_eq!(seen(None, ahead), (0, 5));
        assert_eq!(seen(Some(5), ahead), (5, 5));
        assert_eq!(seen(Some(9), ahead), (9, 5), "the data ends earlier");
        assert_eq!(seen(Some(3), ahead), (3, 5), "the data continues");
    }
}

/// A batch that counts how often its tensors are changed.
#[derive(Default)]
struct Movable(usize);

impl Batch for Movable {
    fn samples(&self) -> Option<u64> {
        None
    }
    fn describe(&self, text: &mut String) {
        text.push_str("movable");
    }
    fn tensors(&self, _: &mut dyn FnMut(&Tensor)) {}
    fn tensors_mut(&mut self, _: &mut dyn FnMut(&mut Tensor)) {
        self.0 += 1;
    }
}

/// A type that does not implement `Batch`, for skipped fields.
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

fn description(batch: &impl Batch) -> String {
    let mut text = String::new();
    batch.describe(&mut text);
    text
}

#[test]
fn a_derived_batch_delegates_to_its_fields() {
    let tokens = Tensor::zeros([4, 9], (Kind::Int64, device()));
    let mut sentences = Sentences {
        id: Id(1),
        first: Movable::default(),
        tokens: tokens.shallow_clone(),
        r#type: vec![Movable::default(), Movable::default()],
        source: std::marker::PhantomData::<u8>,
    };
    assert_eq!(sentences.samples(), Some(4), "of the first field that has samples");
    assert_eq!(
        description(&sentences),
        "Sentences { first: movable, tokens: Int64 [4, 9], type: [movable, movable] }"
    );
    let mut seen = 0;
    sentences.tensors_mut(&mut |tensor| {
        assert_eq!(tensor.data_ptr(), tokens.data_ptr());
        seen += 1;
    });
    for movable in sentences.r#type.iter().chain([&sentences.first]) {
        assert_eq!(movable.0, 1);
    }
    assert_eq!((sentences.id.0, seen), (1, 1));

    let mut pair = Pair(Id(1), Movable::default(), Some(tokens));
    assert_eq!(pair.samples(), Some(4));
    assert_eq!(description(&pair), "Pair(movable, [Int64 [4, 9]])");
    let mut seen = 0;
    pair.tensors_mut(&mut |_| seen += 1);
    assert_eq!((pair.0.0, pair.1.0, seen), (1, 1, 1));
    assert_eq!(Pair(Id(1), 2.5, None).samples(), None);
}

#[derive(Batch, Rows)]
struct Pairs<T> {
    left: T,
    right: Tensor,
    far: [Tensor; 1],
}

/// A task that learns the squared distance between two points.
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

/// Returns ten pairs of points, and the squared distances of the first `rows` of them.
fn pairs(rows: i64) -> Pairs<Tensor> {
    let wave = |phase: f64| (Tensor::arange(30, (Kind::Float, device())) + phase).sin().view([10, 3]);
    let left = wave(0.0);
    let right = wave(2.0);
    let far = (&left - &right).square().sum_dim_intlist(1, false, Kind::Float).narrow(0, 0, rows);
    Pairs { left, right, far: [far] }
}

#[test]
fn a_model_trains_on_prefetched_derived_batches() {
    tch::set_num_threads(1);
    let vars = nn::VarStore::new(device());
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
fn derived_rows_select_the_same_rows_of_every_field_and_refuse_unequal_lengths() {
    let expected = pairs(10);
    let mut loader = InMemory::new(pairs(10)).unwrap().batch_size(4).shuffle(1);
    let mut order =
        InMemory::new(Tensor::arange(10, (Kind::Int64, device()))).unwrap().batch_size(4).shuffle(1);
    for (batch, rows) in loader.batches(0, 0).unwrap().zip(order.batches(0, 0).unwrap()) {
        let batch = batch.unwrap();
        let rows = rows.unwrap();
        let fields = [
            (&batch.left, &expected.left),
            (&batch.right, &expected.right),
            (&batch.far[0], &expected.far[0]),
        ];
        for (part, whole) in fields {
            assert_eq!(*part, whole.index_select(0, &rows));
        }
    }
    let slice = pairs(10).slice(2, 3);
    assert_eq!((slice.samples(), &slice.right), (Some(3), &expected.right.narrow(0, 2, 3)));
    let error = InMemory::new(pairs(9)).map(drop).unwrap_err().to_string();
    assert_eq!(
        error,
        "the tensors of the data have different numbers of rows, 10, 10, 9: expected the same number in all"
    );
}
