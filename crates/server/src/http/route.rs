//! Which path answers what, and which methods it takes.

use epicepoch_wire::http::{
    PATH_LEADER, PATH_MEMBERS, PATH_MEMBERSHIP, PATH_METRICS, PATH_READY, PATH_TIMESTAMP, PATH_UP,
};
use http::Method;

use crate::metrics::worker::PathLabel;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Timestamp,
    Up,
    Ready,
    Leader,
    Members,
    Metrics,
}

impl Route {
    /// The route of a path, compared byte by byte: `/timestamp/` is another path.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            PATH_TIMESTAMP => Some(Self::Timestamp),
            PATH_UP => Some(Self::Up),
            PATH_READY => Some(Self::Ready),
            PATH_LEADER => Some(Self::Leader),
            PATH_MEMBERS | PATH_MEMBERSHIP => Some(Self::Members),
            PATH_METRICS => Some(Self::Metrics),
            _ => None,
        }
    }

    /// Whether the route takes the method. `HEAD` is a `GET` without the body, except where it
    /// would burn a timestamp that nobody sees.
    pub(crate) fn takes(self, method: &Method) -> bool {
        match self {
            Self::Timestamp => *method == Method::GET || *method == Method::POST,
            Self::Up | Self::Ready | Self::Leader | Self::Members | Self::Metrics => {
                *method == Method::GET || *method == Method::HEAD
            }
        }
    }

    /// The methods that the route takes, the value of `Allow`.
    pub(crate) const fn allowed(self) -> &'static str {
        match self {
            Self::Timestamp => "GET, POST",
            Self::Up | Self::Ready | Self::Leader | Self::Members | Self::Metrics => "GET, HEAD",
        }
    }

    /// The path as metrics name it.
    pub(crate) const fn label(self) -> PathLabel {
        match self {
            Self::Timestamp => PathLabel::Timestamp,
            Self::Up => PathLabel::Up,
            Self::Ready => PathLabel::Ready,
            Self::Leader => PathLabel::Leader,
            Self::Members => PathLabel::Members,
            Self::Metrics => PathLabel::Metrics,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_byte_by_byte() {
        assert_eq!(Route::of("/timestamp"), Some(Route::Timestamp));
        assert_eq!(Route::of("/membership"), Route::of("/members"));
        for path in ["", "/", "*", "/timestamp/", "/Timestamp", "//up", "/up%20"] {
            assert_eq!(Route::of(path), None, "{path}");
        }
    }

    #[test]
    fn a_head_request_burns_no_timestamp() {
        assert!(!Route::Timestamp.takes(&Method::HEAD));
        assert!(Route::Timestamp.takes(&Method::POST));
        assert!(Route::Up.takes(&Method::HEAD));
        assert!(!Route::Up.takes(&Method::POST));
    }
}
