//! The rules of interval mode that can be broken on purpose. The checkers must find each.

macro_rules! plants {
    ($(#[$about:meta])* $type:ident { $($name:ident: $what:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $(#[doc = $what] $name,)*
        }

        impl $type {
            /// Every planted bug.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name, and what it does.
            #[must_use]
            pub const fn text(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$name => (stringify!($name), $what),)*
                }
            }

            /// The planted bug with this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.text().0 == name)
            }
        }
    };
}
pub(crate) use plants;

plants! {
    /// A planted bug of interval mode.
    IntervalPlant {
        NoWait: "Clients do not wait.",
        HalfWait: "Clients wait for half of the time.",
        WaitWithoutDrift: "Clients wait without the margin for their own clock.",
        WaitBeforeStamp: "The wait counts from the request, not from the answer.",
        StampMiddle: "The timestamp is the clock, not the latest time.",
        StampEarliest: "The timestamp is the earliest time.",
        TruncatedDown: "The timestamp is truncated to an interval, and the wait is as before.",
        BoundNotGrown: "The bound does not grow between two statements of the source.",
        VoidIgnored: "A statement of the source is believed for ever.",
        TooWideAnswered: "A bound that is too wide is cut, and answered.",
        DisruptionIgnored: "The disruption marker is not read.",
        TornReading: "The clock is read, then the source: two moments are mixed.",
        StaleReading: "The source is read now and then, while the clock is corrected.",
        CachedInterval: "An interval from before the arrival of a request is used.",
        MarkForgotten: "A restart does not begin above the mark.",
        MarkAfterStamp: "A mark counts before it is durable.",
        NoNodeInIndex: "The index has no node id.",
        CountRestarts: "The count begins anew in every answer.",
        IdUsedAgain: "Two nodes have one id.",
        CeilingIgnored: "A node does not wait for the ceiling of quorum mode to pass.",
        MixedWithQuorum: "The leader of quorum mode goes on to answer.",
        SeedOtherKey: "Truncated time, no wait, and a retry only where the same key is read.",
        PeersIgnored: "A node does not compare its interval with the others'.",
        PeersUnheard: "A node that has just begun does not wait for the others' intervals.",
        HalfIsEnough: "A node that half of the intervals contradict goes on.",
        ReportWithoutTrip: "A report does not grow by its round trip.",
        ReportOfOldReading: "A node tells the others a reading as it was, not as of now.",
        WorldBoundLies: "The source states a bound that does not hold.",
        WorldClientFast: "A client's clock runs twice as fast as is allowed.",
    }
}
