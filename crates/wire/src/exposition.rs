//! The formats of a page of metrics: which one a scraper asks for, and the older one, made from the
//! newer one.
//!
//! References: the `OpenMetrics` specification 1.0.0; Prometheus' text format 0.0.4; RFC 9110,
//! 12.5.1 for the header `accept`.

use std::fmt::Write as _;

/// The format of a page of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// `OpenMetrics` 1.0.0: the format for a scraper that has no preference.
    OpenMetrics,
    /// Prometheus' text format 0.0.4, which more tools read.
    Text,
}

impl Exposition {
    /// The format for a request with these values of the header `accept`. It is
    /// [`Self::OpenMetrics`] unless the scraper prefers the text format. A page is sent in any
    /// case: there is no refusal of a scraper that accepts neither.
    pub fn preferred<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let (mut open_metrics, mut text) = (None, None);
        for range in accept.flat_map(|value| value.split(',')) {
            open_metrics = open_metrics.max(Self::OpenMetrics.matches(range));
            text = text.max(Self::Text.matches(range));
        }
        let quality = |found: Option<Match>| found.map_or(0, |found| found.quality);
        if quality(text) > quality(open_metrics) { Self::Text } else { Self::OpenMetrics }
    }

    /// The media type of the page.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The page in this format. `page` is in the `OpenMetrics` format, each `HELP` is followed by
    /// its `TYPE`, and no help text has a backslash.
    #[must_use]
    pub fn of(self, page: String) -> String {
        match self {
            Self::OpenMetrics => page,
            Self::Text => text(&page),
        }
    }

    /// Type, subtype and version.
    const fn parts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
            Self::Text => ("text", "plain", "0.0.4"),
        }
    }

    /// How well a media range of the header fits this format; `None` if it does not.
    fn matches(self, range: &str) -> Option<Match> {
        let (kind, subtype, version) = self.parts();
        let mut parts = range.split(';').map(str::trim);
        let (range_kind, range_subtype) = parts.next()?.split_once('/')?;
        let mut specificity = match (range_kind, range_subtype) {
            ("*", "*") => 0,
            (a, "*") if a.eq_ignore_ascii_case(kind) => 1,
            (a, b) if a.eq_ignore_ascii_case(kind) && b.eq_ignore_ascii_case(subtype) => 2,
            _ => return None,
        };
        let mut quality = QUALITY_MAX;
        for parameter in parts {
            let Some((name, value)) = parameter.split_once('=') else { continue };
            let value = value.trim_matches('"');
            if name.eq_ignore_ascii_case("q") {
                quality = self::quality(value)?;
            } else if name.eq_ignore_ascii_case("version") {
                if value != version {
                    return None;
                }
                specificity += 1;
            } else if name.eq_ignore_ascii_case("charset") && !value.eq_ignore_ascii_case("utf-8") {
                return None;
            }
            // Other parameters, such as Prometheus' `escaping`, change nothing: every name of ours
            // is valid in each form.
        }
        Some(Match { specificity, quality })
    }
}

/// A media range that fits a format. The greatest one decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Match {
    /// How much the range says about the format.
    specificity: u8,
    /// Thousandths, `0..=QUALITY_MAX`. 0: not acceptable.
    quality: u16,
}

/// The quality of a range that names none.
const QUALITY_MAX: u16 = 1000;

/// A quality of RFC 9110, 12.4.2: 0 to 1 with at most three decimals. `None` if it is malformed.
fn quality(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_valid = decimals.len() <= 3 && decimals.bytes().all(|byte| byte.is_ascii_digit());
    let decimals = format!("{decimals:0<3}").parse::<u16>().ok().filter(|_| is_valid)?;
    match whole {
        "0" => Some(decimals),
        "1" if decimals == 0 => Some(QUALITY_MAX),
        _ => None,
    }
}

/// A page of `OpenMetrics` in the text format. That format has no units, no end mark and no type
/// `info`, and it names a counter as its samples are named.
fn text(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut help = None;
    for line in page.lines() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
            continue;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let (suffix, kind) = match kind {
            "counter" => ("_total", kind),
            "info" => ("_info", "gauge"),
            "unknown" => ("", "untyped"),
            _ => ("", kind),
        };
        if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
            let _infallible = writeln!(text, "# HELP {name}{suffix} {help}");
        }
        let _infallible = writeln!(text, "# TYPE {name}{suffix} {kind}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferred(accept: &[&str]) -> Exposition {
        Exposition::preferred(accept.iter().copied())
    }

    #[test]
    fn a_scraper_gets_the_format_that_it_prefers() {
        use Exposition::{OpenMetrics, Text};
        // What Prometheus 2.42 and 3.5 send, with and without the newer format.
        let old = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                   version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let new = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                   application/openmetrics-text;version=0.0.1;q=0.4,\
                   text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                   text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let plain = "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                     text/plain;version=0.0.4;q=0.4,*/*;q=0.2";
        for (accept, expected) in [
            (&[][..], OpenMetrics),
            (&[""], OpenMetrics),
            (&["*/*"], OpenMetrics),
            (&[old], OpenMetrics),
            (&[new], OpenMetrics),
            (&[plain], Text),
            (&["text/plain"], Text),
            (&["text/*, application/*;q=0.9"], Text),
            (&["TEXT/Plain ; Version=0.0.4 ; CharSet=\"UTF-8\""], Text),
            (&["text/plain;version=0.0.4;q=0.5", "application/openmetrics-text;q=0.4"], Text),
            (&["text/plain;q=0.4,application/openmetrics-text;q=0.5"], OpenMetrics),
            // The most specific range decides, not the first or the best one.
            (&["*/*, application/openmetrics-text;q=0.1"], Text),
            (&["text/*;q=0.9, text/plain;q=0.1, */*;q=0.5"], OpenMetrics),
            (&["text/plain;version=0.0.4;q=0, text/plain, */*;q=0.2"], OpenMetrics),
            (&["application/openmetrics-text;q=0, */*;q=0.001"], Text),
            // Nothing that this program speaks, or nothing valid.
            (&["text/plain;version=1.0.0"], OpenMetrics),
            (&["text/plain;charset=utf-16"], OpenMetrics),
            (&["text/plain;q=1.001"], OpenMetrics),
            (&["text/plain;q=0.0001"], OpenMetrics),
            (&["text/plain;q=-1", "text/plain;q=", "text"], OpenMetrics),
            (&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], OpenMetrics),
        ] {
            assert_eq!(preferred(accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn the_text_format_names_counters_as_their_samples() {
        let page = "# HELP a_seconds It's # HELP.\n# TYPE a_seconds counter\n\
                    # UNIT a_seconds seconds\na_seconds_total{b=\"# EOF\"} 1.5\n\
                    # HELP c Who.\n# TYPE c info\nc_info{d=\"e\"} 1\n\
                    # HELP f How.\n# TYPE f histogram\nf_bucket{le=\"+Inf\"} 1\nf_sum 1\nf_count 1\n\
                    # TYPE g gauge\ng 0\n# EOF\n";
        let expected = "# HELP a_seconds_total It's # HELP.\n# TYPE a_seconds_total counter\n\
                        a_seconds_total{b=\"# EOF\"} 1.5\n\
                        # HELP c_info Who.\n# TYPE c_info gauge\nc_info{d=\"e\"} 1\n\
                        # HELP f How.\n# TYPE f histogram\nf_bucket{le=\"+Inf\"} 1\nf_sum 1\n\
                        f_count 1\n# TYPE g gauge\ng 0\n";
        assert_eq!(Exposition::Text.of(page.to_owned()), expected);
        assert_eq!(Exposition::OpenMetrics.of(page.to_owned()), page);
    }
}
