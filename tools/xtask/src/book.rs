//! The book: all documents of the repository as one site that can be searched. The documents stay
//! where they are. This module lays them out for mdbook: it resolves links, inserts sections of
//! other documents, and copies pictures and other files that a page links to. `site` checks the
//! result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The pages of the book and their order. Links in it are relative to its directory.
const SUMMARY: &str = "docs/book/SUMMARY.md";
/// Files that mdbook needs beside the pages.
const SETTINGS: [&str; 2] = ["docs/book/book.toml", "docs/book/style.css"];
/// All pages of this directory follow its `README.md`, so the summary need not name them.
const DECISIONS: &str = "docs/decisions";
/// A line that begins with this, and then has a link and ` -->`, stands for the section below that
/// heading.
const SECTION: &str = "<!-- section: ";
/// Endings of files that browsers show as they are. Others get `.txt` as well.
const PICTURES: [&str; 2] = ["png", "svg"];
/// Beginnings of lines that begin a new paragraph.
const BLOCKS: [&str; 4] = ["- ", "|", "#", "> "];
/// Where the summary and the pages are laid out.
const PAGES: &str = "src";

/// The sources of the book.
pub(crate) struct Book {
    summary: String,
    /// The text of each page, by its path in the repository.
    pages: BTreeMap<PathBuf, String>,
    /// Other files that pages link to.
    files: BTreeSet<PathBuf>,
}

impl Book {
    /// Reads the documents and resolves their links.
    ///
    /// # Errors
    /// When a file cannot be read, or there are findings: a document that the summary lacks, or a
    /// link to nothing.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let texts = documents(root)?;
        let summary = texts.get(Path::new(SUMMARY)).ok_or(format!("{SUMMARY} does not exist"))?;
        let summary = with_decisions(summary, &texts);
        let mut findings = missing(&summary, &texts);
        let mut book =
            Self { summary: String::new(), pages: BTreeMap::new(), files: BTreeSet::new() };
        let names: BTreeSet<&PathBuf> = texts.keys().collect();
        for (path, text) in texts.iter().filter(|(path, _)| *path != Path::new(SUMMARY)) {
            let mut page =
                Page { root, pages: &names, path, files: &mut book.files, wrong: vec![] };
            let text = page.lay_out(text, path, Some(&texts));
            findings.append(&mut page.wrong);
            book.pages.insert(path.clone(), text);
        }
        let top = Path::new("SUMMARY.md");
        let mut page =
            Page { root, pages: &names, path: top, files: &mut book.files, wrong: vec![] };
        book.summary = page.lay_out(&summary, Path::new(SUMMARY), None);
        findings.append(&mut page.wrong);
        if findings.is_empty() { Ok(book) } else { Err(findings.join("\n")) }
    }

    /// The number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Writes the sources for mdbook to an empty directory.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(crate) fn write(&self, root: &Path, directory: &Path) -> Result<(), String> {
        let write = |path: &Path, bytes: &[u8]| {
            let path = directory.join(path);
            let parent = path.parent().unwrap_or(directory);
            fs::create_dir_all(parent)
                .and_then(|()| fs::write(&path, bytes))
                .map_err(|error| format!("{}: {error}", path.display()))
        };
        let read = |path: &Path| {
            fs::read(root.join(path)).map_err(|error| format!("{}: {error}", path.display()))
        };
        for name in SETTINGS.map(Path::new) {
            write(name.file_name().map_or(name, Path::new), &read(name)?)?;
        }
        write(&Path::new(PAGES).join("SUMMARY.md"), self.summary.as_bytes())?;
        for (path, text) in &self.pages {
            write(&Path::new(PAGES).join(page_name(path)), text.as_bytes())?;
        }
        for path in &self.files {
            let bytes =
                if root.join(path).is_dir() { list(&root.join(path))? } else { read(path)? };
            write(&Path::new(PAGES).join(file_name(root, path)), &bytes)?;
        }
        Ok(())
    }
}

/// The Markdown files of the repository, including new files.
fn documents(root: &Path) -> Result<BTreeMap<PathBuf, String>, String> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"]);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut texts = BTreeMap::new();
    for name in names.lines().filter(|name| root.join(name).exists()) {
        let text =
            fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
        texts.insert(PathBuf::from(name), text);
    }
    Ok(texts)
}

/// The summary, with the pages of the decisions below the page that lists them.
fn with_decisions(summary: &str, texts: &BTreeMap<PathBuf, String>) -> String {
    let mut all = String::new();
    let link =
        format!("]({})", relative(Path::new(SUMMARY), Path::new(DECISIONS).join("README.md")));
    for line in summary.lines() {
        let _ = writeln!(all, "{line}");
        if !line.contains(&link) {
            continue;
        }
        let indent = line.len() - line.trim_start().len() + 4;
        for (path, text) in texts.iter().filter(|(path, _)| path.starts_with(DECISIONS)) {
            if path.ends_with("README.md") {
                continue;
            }
            let title = text.lines().next().unwrap_or_default().trim_start_matches("# ");
            let title = title.replace('[', "(").replace(']', ")");
            let link = relative(Path::new(SUMMARY), path);
            let _ = writeln!(all, "{:indent$}- [{title}]({link})", "");
        }
    }
    all
}

/// What is wrong with the summary: documents that it does not name, or names twice.
fn missing(summary: &str, texts: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let base = Path::new(SUMMARY).parent().unwrap_or(Path::new(""));
    let named: Vec<PathBuf> = links(summary).map(|link| normal(&base.join(link))).collect();
    let documents = texts.keys().filter(|path| *path != Path::new(SUMMARY));
    documents
        .filter_map(|path| match named.iter().filter(|other| *other == path).count() {
            0 => Some(format!("{SUMMARY} does not name {}: add a line for it", path.display())),
            1 => None,
            _ => Some(format!("{SUMMARY} names {} twice", path.display())),
        })
        .collect()
}

/// A page while it is laid out.
struct Page<'a> {
    root: &'a Path,
    pages: &'a BTreeSet<&'a PathBuf>,
    /// The document that becomes the page.
    path: &'a Path,
    files: &'a mut BTreeSet<PathBuf>,
    wrong: Vec<String>,
}

impl Page<'_> {
    /// Resolves the links of `text`, which comes from the document `from`. If `texts` is given, it
    /// also inserts sections of these documents.
    fn lay_out(
        &mut self,
        text: &str,
        from: &Path,
        texts: Option<&BTreeMap<PathBuf, String>>,
    ) -> String {
        let (mut out, mut in_code, mut in_span) = (String::new(), false, false);
        for line in text.lines() {
            // A span of code may go on in the next line, but not in the next paragraph.
            let words = line.trim_start();
            in_span &= !words.is_empty() && !BLOCKS.iter().any(|begin| words.starts_with(begin));
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            let section = line.strip_prefix(SECTION).and_then(|rest| rest.strip_suffix(" -->"));
            match (section, texts) {
                (Some(link), Some(texts)) if !in_code => {
                    let inserted = self.section(link, from, texts);
                    let _ = writeln!(out, "\n{inserted}");
                }
                _ if in_code || fence => {
                    let _ = writeln!(out, "{line}");
                }
                _ => {
                    let _ = writeln!(out, "{}", self.line(line, in_span, from));
                    in_span ^= line.matches('`').count() % 2 == 1;
                }
            }
        }
        out
    }

    /// The section that `link` names, without its heading.
    fn section(&mut self, link: &str, from: &Path, texts: &BTreeMap<PathBuf, String>) -> String {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let document = normal(&directory(from).join(path));
        let found = texts.get(&document).and_then(|text| below(text, anchor));
        let Some(section) = found else {
            self.wrong.push(format!("{}: no such section: {link}", from.display()));
            return String::new();
        };
        self.lay_out(&section, &document, None)
    }

    /// A line with its links resolved, except in code. `in_span` says whether it begins in code.
    fn line(&mut self, line: &str, in_span: bool, from: &Path) -> String {
        let parts = line.split('`').enumerate().map(|(at, part)| {
            if (at % 2 == 1) == in_span { self.part(part, from) } else { part.to_owned() }
        });
        parts.collect::<Vec<_>>().join("`")
    }

    fn part(&mut self, text: &str, from: &Path) -> String {
        let mut pieces = text.split("](");
        let mut out = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let resolved = match piece.split_once(')') {
                Some((link, rest)) if !link.contains(' ') => {
                    format!("]({}){rest}", self.link(link, from))
                }
                _ => format!("]({piece}"),
            };
            out.push_str(&resolved);
        }
        out
    }

    /// The link as the page needs it.
    fn link(&mut self, link: &str, from: &Path) -> String {
        if link.contains("://") || link.starts_with("mailto:") {
            return link.to_owned();
        }
        let (path, anchor) = match link.split_once('#') {
            Some((path, anchor)) => (path, format!("#{anchor}")),
            None => (link, String::new()),
        };
        let document = match path {
            "" => from.to_owned(),
            path => normal(&directory(from).join(path)),
        };
        if document == self.path {
            return if anchor.is_empty() { name(&page_name(self.path)) } else { anchor };
        }
        let readme = document.join("README.md");
        let target = if self.pages.contains(&document) {
            page_name(&document)
        } else if self.pages.contains(&readme) {
            page_name(&readme)
        } else if self.root.join(&document).exists() {
            let target = file_name(self.root, &document);
            self.files.insert(document);
            target
        } else {
            self.wrong.push(format!("{}: a link to nothing: {link}", from.display()));
            return link.to_owned();
        };
        format!("{}{anchor}", relative(&page_name(self.path), target))
    }
}

/// The text below the heading with this anchor, up to the next heading that is not below it.
fn below(text: &str, anchor: &str) -> Option<String> {
    let (mut level, mut in_code, mut found) = (None, false, String::new());
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let depth = line.len() - line.trim_start_matches('#').len();
        let is_heading = !in_code && depth > 0;
        match level {
            None if is_heading && crate::documents::anchor(line) == anchor => level = Some(depth),
            Some(level) if is_heading && depth <= level => break,
            None => {}
            Some(_) => {
                let _ = writeln!(found, "{line}");
            }
        }
    }
    level.map(|_| found)
}

/// The targets of the links in a text.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// The path of a document's page. A `README.md` becomes the first page of its directory. In place of
/// the summary there is the first page, because every page shows the summary at its side.
fn page_name(path: &Path) -> PathBuf {
    if path == Path::new(SUMMARY) {
        return PathBuf::from("index.md");
    }
    if path.ends_with("README.md") { path.with_file_name("index.md") } else { path.to_owned() }
}

/// The path of the copy of a file that is no page, or of the list of a directory.
fn file_name(root: &Path, path: &Path) -> PathBuf {
    if root.join(path).is_dir() {
        return path.join("index.html");
    }
    let is_picture = path.extension().is_some_and(|end| PICTURES.iter().any(|one| end == *one));
    if is_picture { path.to_owned() } else { PathBuf::from(format!("{}.txt", path.display())) }
}

/// A page that lists the names of the files of a directory.
fn list(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error| format!("{}: {error}", path.display());
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        names.insert(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    let mut rows = String::new();
    for name in names {
        let _ = writeln!(rows, "<li><code>{name}</code>");
    }
    let title = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!(
        "<!DOCTYPE html>\n<title>{title}</title>\n<p>Files in the repository:\n<ul>\n{rows}</ul>\n"
    )
    .into_bytes())
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::Normal(part) => out.push(part),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    out
}

/// The link from the file `from` to the file `to`.
fn relative(from: &Path, to: impl AsRef<Path>) -> String {
    let (from, to) = (directory(from), to.as_ref());
    let shared = from.components().zip(to.components()).take_while(|(one, other)| one == other);
    let shared = shared.count();
    let up = from.components().skip(shared).map(|_| "..".to_owned());
    let down = to.components().skip(shared).map(|part| part.as_os_str().to_string_lossy().into());
    up.chain(down).collect::<Vec<String>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with these files, in a directory of its own.
    fn repository(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-book-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(directory(&path)).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        let git = Command::new("git").current_dir(&root).args(["init", "--quiet"]).status();
        assert!(git.expect("git is installed").success());
        root
    }

    const SUMMARY_TEXT: &str =
        "[Start](../../README.md)\n- [A](../a.md)\n- [D](../decisions/README.md)\n";

    #[test]
    fn links_lead_to_pages_and_to_copies_of_files() {
        let root = repository(
            "links",
            &[
                (SUMMARY, SUMMARY_TEXT),
                (
                    "README.md",
                    "[a](docs/a.md#b), `[c](d.md)`\n```\n[e](f.md)\n```\n## S\n[a](docs/a.md) [p](q.png)\n## T\n",
                ),
                (
                    "docs/a.md",
                    "[top](../README.md) [src](../x.rs) [all](../x) [own](#b)\n## b\n<!-- section: ../README.md#s -->\n",
                ),
                (
                    "docs/decisions/README.md",
                    "[1](0001-x.md) `a\n[b](c.md)` [dir](../decisions)\n- `d\n- [2](0001-x.md)\n",
                ),
                ("docs/decisions/0001-x.md", "# 1. A [b]\n"),
                ("q.png", ""),
                ("x.rs", ""),
                ("x/y.json", ""),
            ],
        );
        let book = Book::read(&root).expect("no findings");
        let page = |path: &str| book.pages[Path::new(path)].as_str();
        assert_eq!(
            page("README.md"),
            "[a](docs/a.md#b), `[c](d.md)`\n```\n[e](f.md)\n```\n## S\n[a](docs/a.md) [p](q.png)\n## T\n"
        );
        assert_eq!(
            page("docs/a.md"),
            "[top](../index.md) [src](../x.rs.txt) [all](../x/index.html) [own](#b)\n## b\n\n[a](a.md) [p](../q.png)\n\n"
        );
        assert_eq!(
            page("docs/decisions/README.md"),
            "[1](0001-x.md) `a\n[b](c.md)` [dir](index.md)\n- `d\n- [2](0001-x.md)\n"
        );
        assert_eq!(
            book.summary,
            "[Start](index.md)\n- [A](docs/a.md)\n- [D](docs/decisions/index.md)\n    - [1. A (b)](docs/decisions/0001-x.md)\n"
        );
        let files = ["q.png", "x", "x.rs"].map(PathBuf::from);
        assert_eq!(book.files, BTreeSet::from(files));
        fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn a_document_outside_the_summary_and_a_link_to_nothing_are_found() {
        let root = repository(
            "missing",
            &[
                (SUMMARY, &format!("{SUMMARY_TEXT}- [A](../a.md)\n- [Z](../z.md)\n")),
                ("README.md", "[x](y.md)\n<!-- section: docs/a.md#none -->\n"),
                ("docs/a.md", ""),
                ("docs/new.md", ""),
                ("docs/decisions/README.md", ""),
            ],
        );
        let findings = Book::read(&root).err().expect("findings");
        let expected = [
            "docs/book/SUMMARY.md names docs/a.md twice",
            "docs/book/SUMMARY.md does not name docs/new.md: add a line for it",
            "README.md: a link to nothing: y.md",
            "README.md: no such section: docs/a.md#none",
            "docs/book/SUMMARY.md: a link to nothing: ../z.md",
        ];
        assert_eq!(findings.lines().collect::<Vec<_>>(), expected);
        fs::remove_dir_all(root).expect("removed");
    }
}
