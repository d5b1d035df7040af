//! The `Date` header of answers (RFC 9110, 6.6.1), made once a second. So are templates: the bytes
//! that all answers of a worker share.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use jiff::fmt::rfc2822::DateTimePrinter;

use crate::front::pipeline::protocol::{Common, Protocol};
use crate::worker::view::View;

const NANOS_OF_A_SECOND: u64 = 1_000_000_000;

/// The date of one second.
#[derive(Debug, Default)]
pub(crate) struct Date {
    /// When the second ends, monotonic nanoseconds.
    until_ns: u64,
    value: Option<HeaderValue>,
}

impl Date {
    /// The present date. `now_ns` is the present monotonic time, nanoseconds.
    pub(crate) fn new(now_ns: u64) -> Self {
        let now = SystemTime::now();
        let past = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        let text = jiff::Timestamp::try_from(now)
            .and_then(|now| DateTimePrinter::new().timestamp_to_rfc9110_string(&now));
        Self {
            until_ns: now_ns + (NANOS_OF_A_SECOND - u64::from(past)),
            value: text.ok().and_then(|text| HeaderValue::try_from(text).ok()),
        }
    }

    /// Whether another second has begun.
    #[inline]
    pub(crate) fn is_past(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }

    /// The value of the header; `None` if the clock gives no valid date.
    pub(crate) fn value(&self) -> Option<&HeaderValue> {
        self.value.as_ref()
    }

    /// The date of now, made again if another second has begun. `now_ns` is the present monotonic
    /// time, nanoseconds.
    pub(crate) fn at(&mut self, now_ns: u64) -> Option<HeaderValue> {
        if self.is_past(now_ns) {
            *self = Self::new(now_ns);
        }
        self.value.clone()
    }
}

/// The bytes that the answers of a protocol share.
pub(crate) trait Templates: Default {
    /// Makes the bytes for a publication and a date. No two calls have the same `generation`.
    fn new(view: &View, date: &Date, generation: u64) -> Self;
}

/// The templates of one worker, and what they were made for. They are made for the first answer.
#[derive(Debug, Default)]
pub(crate) struct Dated<T> {
    view: Option<Rc<View>>,
    date: Date,
    generation: u64,
    templates: T,
}

impl<T: Templates, P: Protocol<Shared = RefCell<Dated<T>>>> Common<P> {
    /// The templates, made again if the second or the publication has changed. The time is the
    /// worker's last clock reading: at most a round trip or an idle tick old.
    #[inline]
    pub(crate) fn templates(&self) -> RefMut<'_, T> {
        let mut dated = self.shared.borrow_mut();
        let (now_ns, view) = (self.sequencer.recent_ns(), self.sequencer.view());
        let is_same = dated.view.as_ref().is_some_and(|made_for| Rc::ptr_eq(made_for, &view));
        if !is_same || dated.date.is_past(now_ns) {
            dated.date.at(now_ns);
            dated.generation += 1;
            dated.templates = T::new(&view, &dated.date, dated.generation);
            dated.view = Some(view);
        }
        RefMut::map(dated, |dated| &mut dated.templates)
    }
}
