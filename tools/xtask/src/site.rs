//! The site that mdbook makes of the book: it is built, and every link and every request of its
//! pages is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::book::Book;
use crate::dependencies;
use crate::shell::Shell;

/// Where the sources for mdbook are laid out.
const SOURCES: &str = "target/book";
/// Time limit of `cargo xtask book DIR`, which may build mdbook first.
const LIMIT: Duration = Duration::from_mins(20);
/// Attributes that make a browser request something at once. A link that a person may follow has
/// `href` in the element `a`.
const LOADED: [&str; 3] = ["src", "srcset", "data"];
/// Fewer links show a mistake in this check.
const LINKS_MIN: usize = 200;

/// `cargo xtask book --check` checks the sources, `cargo xtask book DIR` makes the site in `DIR`.
///
/// # Errors
/// When the arguments are wrong, or there are findings.
pub(crate) fn command(arguments: &[String]) -> Result<bool, String> {
    match arguments {
        [option] if option == "--check" => {
            let book = Book::read(Path::new("."))?;
            println!("book: 0 findings in {} pages", book.len());
            Ok(true)
        }
        [directory] if !directory.starts_with('-') => {
            let log = Path::new("target/xtask/book.log").to_owned();
            let sh = Shell::new(log, Instant::now() + LIMIT, true, false);
            make(&sh.map_err(|error| error.to_string())?, Path::new(directory))?;
            println!("the site begins at {directory}/index.html");
            Ok(true)
        }
        _ => Err("usage: cargo xtask book DIR | --check".to_owned()),
    }
}

/// The step of `nightly`: makes the site, and tries it in a browser.
pub(crate) fn step(sh: &Shell) -> Result<(), String> {
    let directory = Path::new("target/xtask/book");
    let _ = fs::remove_dir_all(directory);
    make(sh, directory)?;
    sh.run("scripts/book target/xtask/book")
}

/// Makes the site in `directory`, which must be new or empty, and checks it.
fn make(sh: &Shell, directory: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)?;
    if fs::read_dir(directory).map_err(failed)?.next().is_some() {
        // mdbook would delete what is there.
        return Err(format!("{} is not empty: name a new directory", directory.display()));
    }
    let book = Book::read(Path::new("."))?;
    let _ = fs::remove_dir_all(SOURCES);
    book.write(Path::new("."), Path::new(SOURCES))?;
    let mdbook = dependencies::mdbook(sh)?;
    let site = directory.canonicalize().map_err(failed)?;
    let mut command = sh.command(&format!("{mdbook} build {SOURCES} --dest-dir"));
    command.arg(&site);
    sh.succeed(command)?;
    let site = Site::read(&site)?;
    let findings = site.findings();
    if site.pages.len() < book.len() {
        return Err(format!("{} pages became {} files", book.len(), site.pages.len()));
    }
    if !findings.is_empty() {
        return Err(findings.join("\n"));
    }
    sh.say(&format!("book: 0 findings in {} links of {} files", site.links(), site.pages.len()));
    if site.links() < LINKS_MIN {
        return Err(format!("the site has only {} links", site.links()));
    }
    Ok(())
}

/// The files of a site, and what its pages refer to.
struct Site {
    files: BTreeSet<PathBuf>,
    pages: BTreeMap<PathBuf, Html>,
    styles: BTreeMap<PathBuf, String>,
}

impl Site {
    fn read(root: &Path) -> Result<Self, String> {
        let (mut files, mut queue) = (BTreeSet::new(), vec![root.to_owned()]);
        while let Some(directory) = queue.pop() {
            let failed = |error| format!("{}: {error}", directory.display());
            for entry in fs::read_dir(&directory).map_err(failed)? {
                let path = entry.map_err(failed)?.path();
                if path.is_dir() {
                    queue.push(path);
                } else {
                    files.insert(path.strip_prefix(root).unwrap_or(&path).to_owned());
                }
            }
        }
        let with = |end: &str| -> Result<BTreeMap<PathBuf, String>, String> {
            let chosen = files.iter().filter(|path| path.extension().is_some_and(|it| it == end));
            let read = |path: &PathBuf| {
                let text = fs::read_to_string(root.join(path));
                Ok((path.clone(), text.map_err(|error| format!("{}: {error}", path.display()))?))
            };
            chosen.map(read).collect()
        };
        let pages = with("html")?.into_iter().map(|(path, text)| (path, Html::of(&text)));
        let (pages, styles) = (pages.collect(), with("css")?);
        Ok(Self { files, pages, styles })
    }

    fn links(&self) -> usize {
        self.pages.values().map(|page| page.links.len()).sum()
    }

    /// Links to nothing, and what a browser would ask another address for.
    fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for (path, page) in &self.pages {
            let mut add = |what: &str, link: &str| {
                findings.push(format!("{}: {what}: {link}", path.display()));
            };
            page.loaded.iter().filter(|link| is_outside(link)).for_each(|link| {
                add("another address is asked", link);
            });
            for link in page.links.iter().chain(&page.loaded).filter(|link| !is_outside(link)) {
                if let Some(what) = self.wrong(path, link) {
                    add(what, link);
                }
            }
        }
        for (path, text) in &self.styles {
            let urls = text.split("url(").skip(1).chain(text.split("@import").skip(1));
            for url in urls.map(|rest| rest.trim_start_matches([' ', '"', '\''])) {
                if is_outside(url) && !url.starts_with("data:") {
                    let url: String = url.chars().take(60).collect();
                    findings.push(format!("{}: another address is asked: {url}", path.display()));
                }
            }
        }
        findings
    }

    fn wrong(&self, from: &Path, link: &str) -> Option<&'static str> {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let path = path.split('?').next().unwrap_or_default();
        let mut target = from.parent().unwrap_or(Path::new("")).to_owned();
        for part in path.split('/') {
            match part {
                "." | "" => {}
                ".." => {
                    if !target.pop() {
                        return Some("a link out of the site");
                    }
                }
                part => target.push(part),
            }
        }
        if path.is_empty() {
            from.clone_into(&mut target);
        }
        if !self.files.contains(&target) {
            return Some("a link to nothing");
        }
        let has = |page: &Html| anchor.is_empty() || page.ids.contains(anchor);
        match self.pages.get(&target) {
            Some(page) if !has(page) => Some("no such heading"),
            _ => None,
        }
    }
}

fn is_outside(link: &str) -> bool {
    let scheme = link.split(['/', '#', '?']).next().unwrap_or_default();
    link.starts_with("//") || scheme.contains(':')
}

/// What a page of HTML defines and refers to.
#[derive(Default)]
struct Html {
    ids: BTreeSet<String>,
    /// Addresses that a person may follow.
    links: Vec<String>,
    /// Addresses that a browser loads at once.
    loaded: Vec<String>,
}

impl Html {
    fn of(text: &str) -> Self {
        let (mut page, mut rest) = (Self::default(), text);
        while let Some(at) = rest.find('<') {
            rest = &rest[at + 1..];
            if rest.starts_with("!--") {
                rest = rest.split_once("-->").map_or("", |(_, rest)| rest);
                continue;
            }
            let element: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
            rest = page.attributes(&element, &rest[element.len()..]);
            if element == "script" || element == "style" {
                rest = rest.split_once(&format!("</{element}")).map_or("", |(_, rest)| rest);
            }
        }
        page
    }

    /// Reads the attributes of an element. Returns the text after them.
    fn attributes<'a>(&mut self, element: &str, mut rest: &'a str) -> &'a str {
        loop {
            let Some(at) = rest.find(['>', '=']) else { return "" };
            let (name, after) = (rest[..at].rsplit(char::is_whitespace).next(), &rest[at + 1..]);
            if rest[at..].starts_with('>') {
                return after;
            }
            let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''));
            let (value, after) = match quote {
                Some(quote) => after[1..].split_once(quote).unwrap_or((after, "")),
                None => after.split_at(after.find([' ', '>', '\n']).unwrap_or(after.len())),
            };
            rest = after;
            let value = value.replace("&amp;", "&");
            match name.unwrap_or_default() {
                "id" => {
                    self.ids.insert(value);
                }
                "href" if matches!(element, "a" | "area") => self.links.push(value),
                "href" => self.loaded.push(value),
                name if LOADED.contains(&name) => self.loaded.push(value),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(files: &[(&str, &str)]) -> Vec<String> {
        let root =
            std::env::temp_dir().join(format!("xtask-site-{}-{}", files.len(), std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        let findings = Site::read(&root).expect("a site").findings();
        fs::remove_dir_all(root).expect("removed");
        findings
    }

    #[test]
    fn a_site_without_faults_has_no_findings() {
        let page = "<!-- <a href=\"no\"> --><a class='x' href=\"d/b.html#there\">b</a><a href=https://e.org>e</a>\
            <script>a < b; \"<a href='no'>\"</script><img src=\"p.png\"><h1 id=here><a href=\"#here\"></a></h1>";
        let other =
            "<h2 id=\"there\"></h2><a href=\"../a.html?x=1#here\">a</a> 1 &lt; 2 href=\"no\"";
        let style = "a { background: url('data:image/png;base64,x') } b { c: url(p.png) }";
        assert_eq!(
            site(&[("a.html", page), ("d/b.html", other), ("p.png", ""), ("s.css", style)]),
            [""; 0]
        );
    }

    #[test]
    fn links_to_nothing_and_requests_to_other_addresses_are_found() {
        let page = "<a href=\"b.html#none\"></a><a href=\"c.html\"></a><a href=\"../d.html\"></a>\
            <script src=\"https://e.org/f.js\"></script><link rel=icon href=\"//e.org/g\">";
        let style = "@import \"https://e.org/h.css\"; a { b: url(https://e.org/i.png) }";
        let found = site(&[("a.html", page), ("b.html", ""), ("s.css", style)]);
        let expected = [
            "a.html: another address is asked: https://e.org/f.js",
            "a.html: another address is asked: //e.org/g",
            "a.html: no such heading: b.html#none",
            "a.html: a link to nothing: c.html",
            "a.html: a link out of the site: ../d.html",
            "s.css: another address is asked: https://e.org/i.png) }",
            "s.css: another address is asked: https://e.org/h.css\"; a { b: url(https://e.org/i.png) }",
        ];
        assert_eq!(found, expected);
    }
}
