//! Spans for the `tracing` crate.

use tracing::{debug_span, info_span};

use crate::error::BoxError;
use crate::run::layers::{Call, Layer, SpanKind};

/// Makes each call a span.
pub(crate) struct Tracing;

impl Layer for Tracing {
    fn call(&self, call: &mut Call<'_>) -> Result<(), BoxError> {
        if call.is_body() {
            return call.run();
        }
        let phase = call.phase().name();
        let name = || call.name();
        let span = match call.kind() {
            SpanKind::Entry => info_span!(target: "trainer", "entry", name = name(), phase),
            SpanKind::Data => debug_span!(target: "trainer", "data", phase),
            SpanKind::Operation => {
                info_span!(target: "trainer", "operation", name = last(&name()), phase)
            }
            SpanKind::Module => debug_span!(target: "trainer", "module", name = name(), phase),
            SpanKind::Hook => {
                let moment = call.moment().unwrap_or_default();
                debug_span!(target: "trainer", "hook", name = name(), moment = last(&moment), phase)
            }
        };
        span.in_scope(|| call.run())
    }
}

/// Returns the name of a moment without its path.
fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use crate::lifecycle::{AfterBackward, AfterStep};
    use crate::testing::Harness;

    /// Records events, and the spans that are entered and exited.
    #[derive(Clone, Default)]
    struct Log {
        lines: Arc<Mutex<Vec<String>>>,
        names: Arc<Mutex<Vec<String>>>,
        ids: Arc<AtomicU64>,
    }

    struct Fields(String);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0 += &format!(" {field}={value:?}");
        }
    }

    impl Subscriber for Log {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("trainer")
        }
        fn new_span(&self, span: &Attributes<'_>) -> Id {
            let mut fields = Fields(format!("{} {}", span.metadata().level(), span.metadata().name()));
            span.record(&mut fields);
            self.names.lock().unwrap().push(fields.0);
            Id::from_u64(self.ids.fetch_add(1, Ordering::Relaxed) + 1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut fields = Fields("event".to_owned());
            event.record(&mut fields);
            self.lines.lock().unwrap().push(fields.0);
        }
        fn enter(&self, id: &Id) {
            let name = self.names.lock().unwrap()[id.into_u64() as usize - 1].clone();
            self.lines.lock().unwrap().push(format!("> {name}"));
        }
        fn exit(&self, id: &Id) {
            let name = self.names.lock().unwrap()[id.into_u64() as usize - 1].clone();
            self.lines.lock().unwrap().push(format!("< {name}"));
        }
    }

    #[test]
    fn operations_hooks_and_data_are_nested_spans_even_if_the_run_fails() {
        for fails in [false, true] {
            let log = Log::default();
            let run = || {
                let harness = Harness::small()
                    .configure(|builder| builder.tracing(true))
                    .on::<AfterBackward>(|_| tracing::info!("seen"));
                let harness = if fails { harness.fail_at::<AfterStep>("lost") } else { harness };
                harness.run().unwrap()
            };
            let outcome = tracing::subscriber::with_default(log.clone(), run);
            assert_eq!((outcome.result.is_err(), outcome.trainer.profile().is_some()), (fails, true));
            let lines = log.lines.lock().unwrap();
            let mut open: Vec<&str> = Vec::new();
            for line in lines.iter() {
                match line.split_at(2) {
                    ("> ", span) => open.push(span),
                    ("< ", span) => assert_eq!(open.pop(), Some(span)),
                    _ => {
                        assert_eq!(line, "event message=seen");
                        let around = [
                            "INFO entry name=\"fit\" phase=\"train\"",
                            "INFO operation name=\"fit\" phase=\"train\"",
                            "INFO operation name=\"epoch\" phase=\"train\"",
                            "INFO operation name=\"train_epoch\" phase=\"train\"",
                            "INFO operation name=\"step\" phase=\"train\"",
                            "DEBUG hook name=\"harness\" moment=\"after_backward\" phase=\"train\"",
                        ];
                        assert_eq!(open, around);
                    }
                }
            }
            assert_eq!(open, [""; 0]);
            assert!(lines.iter().any(|line| line == "> DEBUG data phase=\"train\""));
            let events = lines.iter().filter(|line| line.starts_with("event")).count();
            assert_eq!(events, if fails { 1 } else { 4 });
        }
    }
}
