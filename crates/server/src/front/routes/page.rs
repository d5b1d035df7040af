//! The page for operators in a browser: one document with its style, program and icon, built into
//! the binary. It has no data of the node. Its program asks `/status`, and needs the right for that.
//!
//! The headers restrict what the page can do, so that a mistake in it stays harmless: it runs and
//! loads only its own files, asks only its own node, sends no form, appears in no other page, and
//! tells no other site where the operator came from.

use bytes::Bytes;
use epicepoch_wire::http::PATH_PAGE;
use http::StatusCode;
use http::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY,
    VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};

use super::answer::{self, Answer};
use super::body::Body;
use super::table::Part;
use crate::worker::view::View;

const fn text(part: Part) -> &'static str {
    match part {
        Part::Document => include_str!("page/index.html"),
        Part::Program => include_str!("page/page.js"),
        Part::Style => include_str!("page/page.css"),
        Part::Icon => include_str!("page/icon.svg"),
    }
}

const fn media_type(part: Part) -> HeaderValue {
    HeaderValue::from_static(match part {
        Part::Document => "text/html; charset=utf-8",
        Part::Program => "text/javascript; charset=utf-8",
        Part::Style => "text/css; charset=utf-8",
        Part::Icon => "image/svg+xml",
    })
}

/// What the page may do (Content Security Policy Level 3, and Trusted Types). Nothing is allowed
/// but its own style, program and icon, and questions to its own node. No text becomes HTML.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'",
);

/// The other headers of every part: no guessed media type, no referrer, no window or page of
/// another site with access to this one.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// Answers with a part of the page. `needs_token` says whether `/status` needs a token. The page
/// learns it here (RFC 9110, 11.6.1), because a question without the token would be refused, and
/// counted as a caller without the right.
pub(super) fn answer(view: &View, part: Part, needs_token: bool) -> Answer {
    let body = Body::Whole(Bytes::from_static(text(part).as_bytes()));
    let mut answer = answer::answer(view, StatusCode::OK, media_type(part), body);
    answer.headers_mut().extend(HEADERS);
    if needs_token {
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

/// Leads a browser that asks for `/` to the page.
pub(super) fn redirect(view: &View) -> Answer {
    let mut answer = answer::text(view, StatusCode::SEE_OTHER, Bytes::from_static(b"see /ui\n"));
    let headers = answer.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_static(PATH_PAGE));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    answer
}

/// Whether the caller asks for HTML, as browsers do. `*/*` does not count, because programs send
/// it, too.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let (media_type, parameters) = range.split_once(';').unwrap_or((range, ""));
        let is_refused = parameters.split(';').any(|it| {
            let weight = it.trim().strip_prefix("q=").map(str::parse::<f32>);
            weight.is_some_and(|weight| weight.is_ok_and(|weight| weight == 0.0))
        });
        media_type.trim().eq_ignore_ascii_case("text/html") && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most bytes of all parts together, uncompressed.
    const BYTES_MAX: usize = 40 << 10;
    const PARTS: [Part; 4] = [Part::Document, Part::Program, Part::Style, Part::Icon];

    #[test]
    fn only_a_caller_that_names_html_is_led_to_the_page() {
        let wants = |values: &[&'static str]| {
            let values = values.iter().map(|it| (ACCEPT, HeaderValue::from_static(it)));
            is_wanted(&values.collect())
        };
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        assert!(wants(&[browser]) && wants(&["TEXT/HTML; q=0.1"]) && wants(&["a/b", "text/html"]));
        for values in [
            &[][..],
            &["*/*"],
            &["text/*"],
            &["application/json"],
            &["text/html;q=0"],
            &["text/html;level=1; q=0.000, */*"],
            &["text/htmlx"],
        ] {
            assert!(!wants(values), "{values:?}");
        }
    }

    #[test]
    fn the_page_is_small_and_names_only_its_own_paths() {
        let len: usize = PARTS.iter().map(|part| text(*part).len()).sum();
        assert!(len <= BYTES_MAX, "{len} bytes");
        for part in PARTS {
            // The names of the SVG and XHTML standards are not requested.
            let text = text(part).replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("//www") && !text.contains("https:"), "{part:?}");
            assert!(!text.contains("innerHTML") && !text.contains(" style="), "{part:?}");
        }
        let document = text(Part::Document);
        assert!(!document.contains("<script>") && !document.contains("<style"), "{document}");
        // A policy without this path would break the page; a token in a path would be logged.
        for path in [r#"src="/ui/page.js""#, r#"href="/ui/page.css""#, r#"href="/ui/icon.svg""#] {
            assert!(document.contains(path), "{path}");
        }
    }
}
