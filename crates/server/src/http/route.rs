//! Which path answers what, and which methods it takes.

use epicepoch_wire::http::{
    PATH_ADMIN_ADD, PATH_ADMIN_CLOCK, PATH_ADMIN_MEMBERS, PATH_ADMIN_PROMOTE, PATH_ADMIN_REMOVE,
    PATH_ADMIN_TRANSFER, PATH_LEADER, PATH_MEMBERS, PATH_MEMBERSHIP, PATH_METRICS, PATH_READY,
    PATH_TIMESTAMP, PATH_UP,
};
use http::Method;

use super::admin::Admin;
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
    Admin(Admin),
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
            PATH_ADMIN_MEMBERS => Some(Self::Admin(Admin::Members)),
            PATH_ADMIN_CLOCK => Some(Self::Admin(Admin::Clock)),
            PATH_ADMIN_ADD => Some(Self::Admin(Admin::Add)),
            PATH_ADMIN_PROMOTE => Some(Self::Admin(Admin::Promote)),
            PATH_ADMIN_REMOVE => Some(Self::Admin(Admin::Remove)),
            PATH_ADMIN_TRANSFER => Some(Self::Admin(Admin::Transfer)),
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
            Self::Admin(admin) if admin.changes() => *method == Method::POST,
            Self::Admin(_) => *method == Method::GET,
        }
    }

    /// The methods that the route takes, the value of `Allow`.
    pub(crate) const fn allowed(self) -> &'static str {
        match self {
            Self::Timestamp => "GET, POST",
            Self::Up | Self::Ready | Self::Leader | Self::Members | Self::Metrics => "GET, HEAD",
            Self::Admin(admin) if admin.changes() => "POST",
            Self::Admin(_) => "GET",
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
            Self::Admin(_) => PathLabel::Admin,
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
    fn what_changes_something_is_a_post() {
        let add = Route::of("/admin/members/add").unwrap();
        let list = Route::of("/admin/members").unwrap();
        let takes = |route: Route| [Method::GET, Method::POST].map(|method| route.takes(&method));
        assert_eq!((takes(add), takes(list)), ([false, true], [true, false]));
    }

    #[test]
    fn a_head_request_burns_no_timestamp() {
        assert!(!Route::Timestamp.takes(&Method::HEAD));
        assert!(Route::Timestamp.takes(&Method::POST));
        assert!(Route::Up.takes(&Method::HEAD));
        assert!(!Route::Up.takes(&Method::POST));
    }
}
