//! The page around the charts: style, tables and text. All text is escaped here; only charts are
//! markup.

use std::fmt::Write as _;

use super::chart::{GRID, INK, PENS, Series, css};

/// A page that is being written.
#[derive(Debug)]
pub(super) struct Sheet(String);

impl Sheet {
    pub(super) fn new(title: &str) -> Self {
        let title = escape(title);
        let mut text = String::with_capacity(LEN_EXPECTED);
        let _infallible = write!(
            text,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n",
            colours()
        );
        Self(text)
    }

    /// Preformatted text.
    pub(super) fn verbatim(&mut self, text: &str) {
        let _infallible = writeln!(self.0, "<pre>{}</pre>", escape(text));
    }

    pub(super) fn warning(&mut self, text: &str) {
        let _infallible = writeln!(self.0, "<p class=\"warning\">{}</p>", escape(text));
    }

    /// Writes one row of figures per run, with the run's name if there are several.
    pub(super) fn tiles<'a>(
        &mut self,
        runs: impl Iterator<Item = (Option<&'a str>, Vec<(&'static str, String)>)>,
    ) {
        for (name, tiles) in runs {
            if let Some(name) = name {
                let _infallible = writeln!(self.0, "<h3>{}</h3>", escape(name));
            }
            self.0.push_str("<dl class=\"tiles\">\n");
            for (what, value) in tiles {
                let (what, value) = (escape(what), escape(&value));
                let _infallible = writeln!(self.0, "<div><dt>{what}</dt><dd>{value}</dd></div>");
            }
            self.0.push_str("</dl>\n");
        }
    }

    /// Writes a chart with a legend.
    pub(super) fn chart(&mut self, title: &str, id: &str, says: &str, svg: &str, lines: &[Series]) {
        let (title, id, says) = (escape(title), escape(id), escape(says));
        let _infallible = writeln!(
            self.0,
            "<section>\n<h2>{title}</h2>\n<p class=\"says\">{says}</p>\n\
             <figure id=\"{id}\" aria-label=\"{title}\">\n{svg}<figcaption>"
        );
        for line in lines {
            let pen = PENS.iter().position(|pen| *pen == line.pen).unwrap_or_default();
            let name = escape(&line.name);
            let _infallible = writeln!(self.0, "<span><i class=\"pen{pen}\"></i>{name}</span>");
        }
        self.0.push_str("</figcaption>\n</figure>\n</section>\n");
    }

    /// Writes a table. The first column names the rows.
    pub(super) fn table(&mut self, title: &str, head: &[String], rows: &[Vec<String>]) {
        let title = escape(title);
        let _infallible =
            write!(self.0, "<section>\n<h2>{title}</h2>\n<div class=\"wide\"><table>\n<tr>");
        for cell in head {
            let _infallible = write!(self.0, "<th scope=\"col\">{}</th>", escape(cell));
        }
        self.0.push_str("</tr>\n");
        for row in rows {
            self.0.push_str("<tr>");
            for (at, cell) in row.iter().enumerate() {
                let cell = escape(cell);
                let _infallible = match at {
                    0 => write!(self.0, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(self.0, "<td>{cell}</td>"),
                };
            }
            self.0.push_str("</tr>\n");
        }
        self.0.push_str("</table></div>\n</section>\n");
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</main>\n</body>\n</html>\n");
        self.0
    }
}

/// Escapes text for markup and attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The style of the pens, and the colours of a chart in dark mode.
fn colours() -> String {
    let mut style = String::new();
    let mut dark = String::new();
    for (at, pen) in PENS.iter().enumerate() {
        let (light, dash) = (pen.css(), if pen.is_dashed { "dashed" } else { "solid" });
        let _infallible = writeln!(style, ".pen{at}{{border-top:3px {dash} {light}}}");
        if pen.is_dashed {
            let _infallible = writeln!(style, "[stroke=\"{light}\"]{{stroke-dasharray:14 9}}");
        }
        let colour = pen.dark;
        let _infallible = writeln!(
            dark,
            "[stroke=\"{light}\"]{{stroke:{colour}}}.pen{at}{{border-top-color:{colour}}}"
        );
    }
    let (ink, grid) = (css(INK), css(GRID));
    let _infallible = write!(
        style,
        "@media (prefers-color-scheme:dark){{\n{dark}\
         [stroke=\"{ink}\"]{{stroke:#8b949e}}[fill=\"{ink}\"]{{fill:#c9d1d9}}\
         [stroke=\"{grid}\"]{{stroke:#2b3139}}\n}}\n"
    );
    style
}

/// Approximate length of a page.
const LEN_EXPECTED: usize = 64 << 10;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2128;--soft:#5b6470;--line:#e2e5e9;--paper:#fff;
--card:#f6f7f9;--bad:#a3200f}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#98a2ad;--line:#2b3139;
--paper:#11151a;--card:#191f26;--bad:#ff8a7a}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:24px;margin:0 0 16px}h2{font-size:18px;margin:32px 0 4px}h3{font-size:15px;
margin:16px 0 4px}
p{margin:4px 0}.says{color:var(--soft)}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;
overflow-x:auto;font-size:13px}
.warning{color:var(--bad);font-weight:600;border-left:4px solid var(--bad);padding-left:10px;
white-space:pre-wrap}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(108px,1fr));gap:10px;
margin:8px 0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 12px}
.tiles dt{color:var(--soft);font-size:12px;white-space:nowrap}.tiles dd{margin:0;font-size:19px;
font-variant-numeric:tabular-nums;white-space:nowrap}
figure{margin:8px 0 0}svg{display:block;width:100%;height:auto}
polyline{stroke-linejoin:round}
figcaption{display:flex;flex-wrap:wrap;gap:4px 22px;padding:4px 8px 0 65px;color:var(--soft);
font-size:14px}
figcaption i{display:inline-block;width:26px;margin-right:8px;vertical-align:middle}
.wide{overflow-x:auto}table{border-collapse:collapse;margin-top:8px;
font-variant-numeric:tabular-nums}
th,td{padding:4px 18px 4px 0;border-bottom:1px solid var(--line);text-align:left;
vertical-align:top}
th{font-weight:600;white-space:nowrap}td{overflow-wrap:anywhere}
";
