//! Tests of the spans for `tracing`: one for each connection, and one for each request that callers
//! share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::{leading, patient};

/// Counts the client's spans by name, and how many of them have ended.
#[derive(Clone, Default)]
struct Counts {
    next: Arc<AtomicU64>,
    begun: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    ended: Arc<AtomicU64>,
}

impl Subscriber for Counts {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("epicepoch_client")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        *self.begun.lock().unwrap().entry(span.metadata().name()).or_default() += 1;
        Id::from_u64(1 + self.next.fetch_add(1, Ordering::SeqCst))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn try_close(&self, _: Id) -> bool {
        self.ended.fetch_add(1, Ordering::SeqCst);
        true
    }
}

#[test]
fn a_connection_and_a_request_have_a_span_and_a_call_has_none() {
    let counts = Counts::default();
    // If a process has only one subscriber, `tracing` asks only the thread that reaches a span
    // first. That may be the thread of another test, where nothing listens. So there are two.
    let _second = tracing::Dispatch::new(counts.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let requests = tracing::subscriber::with_default(counts.clone(), || {
        runtime.block_on(async {
            let (_, node) = leading().await;
            let client = patient(&[&node]);
            client.timestamp().await.unwrap();
            let calls: Vec<_> = (0..200)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move { client.timestamp().await.unwrap() })
                })
                .collect();
            for call in calls {
                call.await.unwrap();
            }
            node.asked().len() as u64
        })
    });
    let begun = counts.begun.lock().unwrap().clone();
    assert_eq!(begun, BTreeMap::from([("connection", 1), ("request", requests)]));
    assert!(requests < 50, "{requests} requests for 201 calls");
    assert!(counts.ended.load(Ordering::SeqCst) >= requests, "a request's span ends with it");
}
