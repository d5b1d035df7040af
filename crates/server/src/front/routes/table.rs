//! The only table of a node's answers: paths, their methods, and the right that each path needs. A
//! path that is not in the table gets a 404, even if the caller has no right. For a path in the
//! table, a caller without the needed right is refused. The native protocol has a row here, and gRPC
//! a table of its own.

use epicepoch_config::Config;
use epicepoch_wire::grpc::{health, oracle, pd, reflection};
use epicepoch_wire::http::{
    PATH_ADMIN_ADD, PATH_ADMIN_ADVANCE, PATH_ADMIN_ADVANCE_PLAN, PATH_ADMIN_BACKUP,
    PATH_ADMIN_CLOCK, PATH_ADMIN_MEMBERS, PATH_ADMIN_PROMOTE, PATH_ADMIN_REMOVE, PATH_ADMIN_SET,
    PATH_ADMIN_SETTINGS, PATH_ADMIN_TRANSFER, PATH_INTERVAL, PATH_LATEST, PATH_LEADER,
    PATH_MEMBERS, PATH_MEMBERSHIP, PATH_METRICS, PATH_PAGE, PATH_PAGE_ICON, PATH_PAGE_PROGRAM,
    PATH_PAGE_STYLE, PATH_READY, PATH_ROOT, PATH_STATUS, PATH_TIMESTAMP, PATH_UP,
};
use http::Method;

use super::admin::Admin;
use crate::metrics::worker::PathLabel;
use crate::security::authz::Right;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The path, compared byte by byte: `/timestamp/` is another path.
    pub path: &'static str,
    /// The allowed methods.
    pub methods: Methods,
    /// The right that a caller needs.
    pub right: Right,
    pub(crate) route: Route,
}

/// All paths over HTTP, the most used first.
pub const TABLE: [Row; 26] = [
    row(PATH_TIMESTAMP, Methods::GetPost, Right::Timestamps, Route::Timestamp),
    row(PATH_LATEST, Methods::Get, Right::Timestamps, Route::Latest),
    row(PATH_INTERVAL, Methods::Get, Right::Timestamps, Route::Interval),
    row(PATH_MEMBERS, Methods::GetHead, Right::Timestamps, Route::Members),
    row(PATH_MEMBERSHIP, Methods::GetHead, Right::Timestamps, Route::Members),
    row(PATH_LEADER, Methods::GetHead, Right::Health, Route::Leader),
    row(PATH_READY, Methods::GetHead, Right::Health, Route::Ready),
    row(PATH_UP, Methods::GetHead, Right::Health, Route::Up),
    row(PATH_METRICS, Methods::GetHead, Right::Operations, Route::Metrics),
    row(PATH_STATUS, Methods::GetHead, Right::Operations, Route::Status),
    row(PATH_ROOT, Methods::GetHead, Right::Health, Route::Root),
    row(PATH_PAGE, Methods::GetHead, Right::Page, Route::Page(Part::Document)),
    row(PATH_PAGE_PROGRAM, Methods::GetHead, Right::Page, Route::Page(Part::Program)),
    row(PATH_PAGE_STYLE, Methods::GetHead, Right::Page, Route::Page(Part::Style)),
    row(PATH_PAGE_ICON, Methods::GetHead, Right::Page, Route::Page(Part::Icon)),
    row(PATH_ADMIN_MEMBERS, Methods::Get, Right::Operations, Route::Admin(Admin::Members)),
    row(PATH_ADMIN_CLOCK, Methods::Get, Right::Operations, Route::Admin(Admin::Clock)),
    row(PATH_ADMIN_ADVANCE_PLAN, Methods::Get, Right::Operations, Route::Admin(Admin::AdvancePlan)),
    row(PATH_ADMIN_BACKUP, Methods::Get, Right::Operations, Route::Admin(Admin::Backup)),
    row(PATH_ADMIN_SETTINGS, Methods::Get, Right::Operations, Route::Admin(Admin::Settings)),
    row(PATH_ADMIN_ADD, Methods::Post, Right::Change, Route::Admin(Admin::Add)),
    row(PATH_ADMIN_PROMOTE, Methods::Post, Right::Change, Route::Admin(Admin::Promote)),
    row(PATH_ADMIN_REMOVE, Methods::Post, Right::Change, Route::Admin(Admin::Remove)),
    row(PATH_ADMIN_TRANSFER, Methods::Post, Right::Change, Route::Admin(Admin::Transfer)),
    row(PATH_ADMIN_ADVANCE, Methods::Post, Right::Change, Route::Admin(Admin::Advance)),
    row(PATH_ADMIN_SET, Methods::Post, Right::Change, Route::Admin(Admin::Set)),
];

/// The right that a native connection needs. The native protocol carries only timestamps and the
/// name of the leader.
pub const NATIVE: Right = Right::Timestamps;

/// A row of the table of gRPC calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRow {
    /// The path, which names the service and the method.
    pub path: &'static str,
    /// The right that a caller needs.
    pub right: Right,
    pub(crate) call: Call,
    pub(crate) switch: Switch,
}

/// All gRPC calls. Others are answered with the status UNIMPLEMENTED.
pub const CALLS: [CallRow; 11] = [
    call(oracle::GET_TIMESTAMP, Right::Timestamps, Call::Timestamp, Switch::Oracle),
    call(oracle::STREAM_TIMESTAMPS, Right::Timestamps, Call::Timestamps, Switch::Oracle),
    call(oracle::GET_MEMBERS, Right::Timestamps, Call::Members, Switch::Oracle),
    call(oracle::FIRST_GET_TIMESTAMP, Right::Timestamps, Call::FirstTimestamp, Switch::Oracle),
    call(pd::TSO, Right::Timestamps, Call::Tso, Switch::Pd),
    call(pd::GET_MEMBERS, Right::Timestamps, Call::PdMembers, Switch::Pd),
    call(pd::GET_CLUSTER_INFO, Right::Timestamps, Call::PdClusterInfo, Switch::Pd),
    call(health::CHECK, Right::Health, Call::Check, Switch::Either),
    call(health::WATCH, Right::Health, Call::Watch, Switch::Either),
    call(reflection::INFO, Right::Health, Call::Reflection, Switch::Oracle),
    call(reflection::INFO_ALPHA, Right::Health, Call::Reflection, Switch::Oracle),
];

/// The purpose of a gRPC call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// One request for timestamps.
    Timestamp,
    /// A stream of them.
    Timestamps,
    Members,
    /// One request for one timestamp, of the first EpicEpoch's service.
    FirstTimestamp,
    /// A stream of requests for timestamps, as PD's clients make them.
    Tso,
    PdMembers,
    PdClusterInfo,
    Check,
    Watch,
    Reflection,
}

impl Call {
    /// Whether requests on this call get timestamps.
    pub(crate) const fn is_for_timestamps(self) -> bool {
        match self {
            Self::Timestamp | Self::Timestamps | Self::FirstTimestamp | Self::Tso => true,
            Self::Members
            | Self::PdMembers
            | Self::PdClusterInfo
            | Self::Check
            | Self::Watch
            | Self::Reflection => false,
        }
    }

    /// Whether the client sends one request, or as many as it wants.
    pub(crate) const fn has_one_request(self) -> bool {
        match self {
            Self::Timestamps | Self::Tso | Self::Reflection => false,
            Self::Timestamp
            | Self::Members
            | Self::FirstTimestamp
            | Self::PdMembers
            | Self::PdClusterInfo
            | Self::Check
            | Self::Watch => true,
        }
    }
}

/// The setting that switches a call on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// `GRPC`.
    Oracle,
    /// `PD_WIRE`.
    Pd,
    Either,
}

/// Which gRPC calls a node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switches {
    pub(crate) oracle: bool,
    pub(crate) pd: bool,
}

impl Switches {
    /// As the settings of this node say.
    pub(crate) const fn of(config: &Config) -> Self {
        Self { oracle: config.grpc, pd: config.pd_wire }
    }

    /// Whether the node serves any calls.
    pub(crate) const fn any(self) -> bool {
        self.oracle || self.pd
    }

    /// The names of the services that reflection describes.
    pub(crate) fn described() -> impl Iterator<Item = &'static str> {
        let services = CALLS.iter().filter(|row| row.path != reflection::INFO_ALPHA);
        let services = services.filter(|row| row.switch != Switch::Pd);
        let mut last = "";
        services.filter_map(move |row| {
            let service = row.path.split('/').nth(1).unwrap_or_default();
            (std::mem::replace(&mut last, service) != service).then_some(service)
        })
    }
}

impl CallRow {
    /// The row of a path.
    ///
    /// # Errors
    /// When a node with these switches does not serve it. The error names the setting that would, if
    /// there is one.
    pub(crate) fn of(
        path: &str,
        switches: Switches,
    ) -> Result<&'static Self, Option<&'static str>> {
        let row = CALLS.iter().find(|row| row.path == path).ok_or(None)?;
        match row.switch {
            Switch::Oracle if !switches.oracle => Err(Some("GRPC")),
            Switch::Pd if !switches.pd => Err(Some("PD_WIRE")),
            Switch::Oracle | Switch::Pd | Switch::Either => Ok(row),
        }
    }
}

const fn call(path: &'static str, right: Right, call: Call, switch: Switch) -> CallRow {
    CallRow { path, right, call, switch }
}

const fn row(path: &'static str, methods: Methods, right: Right, route: Route) -> Row {
    Row { path, methods, right, route }
}

impl Row {
    /// The row of a path.
    pub(crate) fn of(path: &str) -> Option<&'static Self> {
        TABLE.iter().find(|row| row.path == path)
    }

    /// The metrics label of the path.
    pub(crate) const fn label(&self) -> PathLabel {
        match self.route {
            Route::Timestamp => PathLabel::Timestamp,
            Route::Latest => PathLabel::Latest,
            Route::Interval => PathLabel::Interval,
            Route::Up => PathLabel::Up,
            Route::Ready => PathLabel::Ready,
            Route::Leader => PathLabel::Leader,
            Route::Members => PathLabel::Members,
            Route::Metrics => PathLabel::Metrics,
            Route::Status => PathLabel::Status,
            Route::Root | Route::Page(_) => PathLabel::Page,
            Route::Admin(_) => PathLabel::Admin,
        }
    }
}

/// The text of a 404: one line with every path.
pub(crate) fn advice() -> String {
    let paths: Vec<_> = TABLE.iter().map(|row| row.path).collect();
    format!("no such path; there are {}\n", paths.join(" "))
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Timestamp,
    Latest,
    Interval,
    Up,
    Ready,
    Leader,
    Members,
    Metrics,
    Status,
    /// Leads browsers to the page. For other callers there is no such path.
    Root,
    Page(Part),
    Admin(Admin),
}

/// A file of the page for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Document,
    Program,
    Style,
    Icon,
}

/// The methods that a path allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Methods {
    /// `HEAD` is not allowed, because it would use up a timestamp that the client does not see.
    GetPost,
    /// `HEAD` is a `GET` without the body.
    GetHead,
    /// The path reads, and may take some time.
    Get,
    /// The path changes something.
    Post,
}

impl Methods {
    /// Whether `method` is allowed.
    #[must_use]
    pub fn take(self, method: &Method) -> bool {
        match self {
            Self::GetPost => *method == Method::GET || *method == Method::POST,
            Self::GetHead => *method == Method::GET || *method == Method::HEAD,
            Self::Get => *method == Method::GET,
            Self::Post => *method == Method::POST,
        }
    }

    /// The value of the `Allow` header.
    #[must_use]
    pub const fn allowed(self) -> &'static str {
        match self {
            Self::GetPost => "GET, POST",
            Self::GetHead => "GET, HEAD",
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(path: &str) -> Option<Route> {
        Row::of(path).map(|row| row.route)
    }

    #[test]
    fn paths_are_compared_byte_by_byte_and_stand_there_once() {
        assert_eq!(route("/timestamp"), Some(Route::Timestamp));
        assert_eq!(route("/membership"), route("/members"));
        for path in ["", "//", "*", "/timestamp/", "/Timestamp", "//up", "/up%20", "/admin", "/ui/"]
        {
            assert_eq!(route(path), None, "{path}");
        }
        for row in TABLE {
            assert_eq!(Row::of(row.path), Some(&row), "{} stands there twice", row.path);
        }
    }

    #[test]
    fn calls_need_what_their_paths_over_http_need() {
        let right = |path| Row::of(path).unwrap().right;
        let both = Switches { oracle: true, pd: true };
        for row in CALLS {
            let path = row.path;
            assert_eq!(CallRow::of(path, both), Ok(&row), "{path} stands there twice");
            let same = match row.call {
                Call::Timestamp | Call::Timestamps | Call::FirstTimestamp | Call::Tso => {
                    right(PATH_TIMESTAMP)
                }
                Call::Members | Call::PdMembers | Call::PdClusterInfo => right(PATH_MEMBERS),
                Call::Check | Call::Watch | Call::Reflection => right(PATH_UP),
            };
            assert_eq!(row.right, same, "{path}");
        }
        assert_eq!(CallRow::of("/pdpb.PD/tso", both), Err(None));
    }

    #[test]
    fn a_switch_serves_its_own_calls_and_the_error_names_it() {
        let of = |path, oracle, pd| CallRow::of(path, Switches { oracle, pd }).map(|row| row.call);
        assert_eq!(of(pd::TSO, true, false), Err(Some("PD_WIRE")));
        assert_eq!(of(oracle::GET_TIMESTAMP, false, true), Err(Some("GRPC")));
        assert_eq!(of(reflection::INFO, false, true), Err(Some("GRPC")));
        for (oracle, pd) in [(true, false), (false, true)] {
            assert_eq!(of(health::CHECK, oracle, pd), Ok(Call::Check));
        }
        let described: Vec<_> = Switches::described().collect();
        let reflection = "grpc.reflection.v1.ServerReflection";
        assert_eq!(
            described,
            [oracle::SERVICE, oracle::FIRST_SERVICE, health::SERVICE, reflection]
        );
    }

    #[test]
    fn only_posts_with_the_right_change_state() {
        for row in TABLE {
            let changes = matches!(row.route, Route::Admin(admin) if admin.changes());
            assert_eq!(row.methods == Methods::Post, changes, "{}", row.path);
            assert_eq!(row.right == Right::Change, changes, "{}", row.path);
        }
    }

    #[test]
    fn metrics_and_admin_pages_are_only_for_operators() {
        for row in TABLE {
            let is_page = row.path.starts_with("/ui");
            assert_eq!(is_page, row.right == Right::Page, "{}", row.path);
            let is_of_operators = is_page
                || row.path.starts_with("/admin")
                || ["/metrics", "/status"].contains(&row.path);
            let is_open = matches!(row.right, Right::Health | Right::Timestamps);
            assert_eq!(is_of_operators, !is_open, "{}", row.path);
        }
        assert_eq!(NATIVE, Right::Timestamps);
    }

    #[test]
    fn a_404_names_every_path_on_one_line() {
        let text = advice();
        assert_eq!(text.lines().count(), 1);
        let words: Vec<_> = text.split_whitespace().collect();
        assert!(TABLE.iter().all(|row| words.contains(&row.path)), "{text}");
    }

    #[test]
    fn a_head_request_burns_no_timestamp() {
        let takes = |path, method: &Method| Row::of(path).unwrap().methods.take(method);
        assert!(!takes("/timestamp", &Method::HEAD));
        assert!(takes("/timestamp", &Method::POST));
        let of_latest = [Method::GET, Method::HEAD, Method::POST];
        assert_eq!(of_latest.map(|method| takes("/latest", &method)), [true, false, false]);
        assert!(takes("/up", &Method::HEAD));
        assert!(!takes("/up", &Method::POST));
    }
}
