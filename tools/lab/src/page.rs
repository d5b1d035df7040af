//! The outcome as one HTML page: map, heat map, time lines, table, and how to read them. The page
//! asks nothing from outside, and has no script.

use std::fmt::Write as _;

use crate::outcome::Outcome;
use crate::picture::{escaped, picture, time_line};
use crate::plan::LinkKind;
use crate::text;

const STYLE: &str = "body{font:15px/1.5 sans-serif;color:#24303c;max-width:70em;margin:2em auto;padding:0 1em}\
    pre{background:#f3f6f9;padding:1em;overflow-x:auto;font-size:13px}h1{font-size:1.6em}\
    .bad{color:#b3372f}.good{color:#2f7d4f}svg{max-width:100%;height:auto}";

const READING: &str = "<h2>How to read this</h2><ul>\
    <li><b>Map.</b> A circle is a region, with its voters; a line is the round trip between two. The \
    leader of the steps 3 to 6 is in the filled region. If a region with a broken red edge is lost, \
    the service stops.</li>\
    <li><b>Matrix.</b> What a timestamp costs clients of a row while the leader is in the column: the \
    round trip to the leader, and from there to the nearest majority. A ! marks a median above 1.2 times \
    the expected one plus 1 ms, one that is shorter than the distance allows, or requests that failed. \
    A - was not measured.</li>\
    <li><b>Time lines.</b> Answers per tenth of a second of each region of clients. The red line is the \
    moment of the fault. The gap behind it is the outage.</li>\
    <li><b>Order.</b> One checker saw every answer of every step: no timestamp may come twice, and none \
    may be below one whose answer had come before.</li>\
    <li><b>Limits.</b> Nodes and clients run on one machine. ";

/// What the links do not show.
fn limits(links: LinkKind) -> &'static str {
    match links {
        LinkKind::Proxies => {
            "The links are TCP proxies that delay bytes: slow start and retransmission on long paths \
             are not seen here."
        }
        LinkKind::Netns => {
            "The links are delayed by the kernel (netem). They lose packets only when cut."
        }
    }
}

/// The page.
#[must_use]
pub fn page(outcome: &Outcome) -> String {
    let topology = &outcome.topology;
    let name = escaped(&topology.name);
    let problems = outcome.problems();
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}: what distance costs\
         </title><meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
         <h1>{name}: what distance costs</h1><p>{}</p>\n",
        escaped(&topology.about)
    );
    if problems.is_empty() {
        let _infallible = writeln!(html, "<p class=\"good\">{}.</p>", outcome.praise());
    }
    for problem in &problems {
        let _infallible =
            writeln!(html, "<p class=\"bad\">Not as expected: {}</p>", escaped(problem));
    }
    html += &picture(topology, Some(outcome));
    for outage in &outcome.outages {
        let what = escaped(&outcome.fault(outage.fault));
        let _infallible = write!(html, "<h2>{what}</h2>\n{}", time_line(outcome, outage));
    }
    let _infallible = write!(
        html,
        "<h2>Figures</h2><pre>{}</pre>\n{READING}{}</li></ul>\n</body></html>\n",
        escaped(&text::outcome(outcome)),
        limits(outcome.plan.links),
    );
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::good;

    #[test]
    fn the_page_is_whole_and_asks_nothing_from_outside() {
        let html = page(&good());
        assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
        for outside in ["<script", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert_eq!(
            html.matches("http").count(),
            html.matches("http://www.w3.org/2000/svg").count()
        );
        assert_eq!(html.matches("<svg").count(), 3, "the map, and two outages");
        assert!(html.contains("<p class=\"good\">all as expected: no p50"));
        let mut bad = good();
        bad.cells[0].expected_ms = 1.0;
        assert!(page(&bad).contains("Not as expected: step 2"));
    }
}
