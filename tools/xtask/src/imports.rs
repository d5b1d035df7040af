//! Checks the direction of imports. The files of a crate must not form a circle. A lower layer must
//! not import a higher one. A crate that ships must not depend on one that proves or measures it.
//!
//! A path (`use crate::a::B`, `super::B`, `crate::a::B` in code) leads to the file that defines the
//! item, through re-exports. So a module file that only declares and re-exports is never part of a
//! circle. If a file continues the `impl` of a type of its parent, it counts as part of that type,
//! not as an importer. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{Kind, Token, attribute, is_for_tests, item_end, tokens};
use crate::{layers, planted};

/// A chain of re-exports of one name is followed for at most this many steps.
const FOLLOW_MAX: usize = 16;
/// A finding lists at most this many names of one import.
const NAMES_MAX: usize = 4;

/// A `use`: the name that it brings into scope, and its path. `*` is a glob.
#[derive(Debug)]
struct Use {
    name: String,
    path: Vec<String>,
    line: usize,
    reexported: bool,
}

#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    uses: Vec<Use>,
    paths: Vec<(Vec<String>, usize)>,
    /// Names that appear in the code outside a longer path. They show whether this file itself uses
    /// what it re-exports.
    words: BTreeSet<String>,
    /// The types that have an `impl` in this file.
    impls: BTreeSet<String>,
    parent: Option<usize>,
}

/// The modules of a crate, read from one root file.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    modules: Vec<Module>,
}

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// An item that this module defines.
    Item(usize),
    /// A module.
    Module(usize),
    /// Something in another crate, or a name that only the compiler knows.
    Elsewhere,
}

/// One file imports another: the line of the first import, and the imported names.
#[derive(Debug, Clone)]
pub(crate) struct Edge {
    line: usize,
    names: BTreeSet<String>,
}

/// For each file of a crate, the files that it imports.
pub(crate) type Edges = BTreeMap<PathBuf, BTreeMap<PathBuf, Edge>>;

impl Tree {
    /// Reads the crate whose root file is `root`.
    ///
    /// # Errors
    /// When a file cannot be read or a declared module has no file.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut tree = Self::default();
        let directory = root.parent().ok_or("a root file without directory")?;
        tree.file(root.to_owned(), directory, None)?;
        Ok(tree)
    }

    fn file(
        &mut self,
        file: PathBuf,
        below: &Path,
        parent: Option<usize>,
    ) -> Result<usize, String> {
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let id = self.add(file, parent);
        self.body(id, &tokens(&text), below)?;
        Ok(id)
    }

    fn add(&mut self, file: PathBuf, parent: Option<usize>) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// Reads the body of a module. Files of its child modules are in the directory `below`.
    fn body(&mut self, id: usize, tokens: &[Token], below: &Path) -> Result<(), String> {
        let (mut at, mut depth, mut path_attribute) = (0, 0_usize, None);
        while at < tokens.len() {
            if let Some((inside, behind)) = attribute(tokens, at) {
                if is_for_tests(inside) && !tokens[at + 1].is('!') {
                    let mut item = behind;
                    while let Some((_, next)) = attribute(tokens, item) {
                        item = next;
                    }
                    at = item_end(tokens, item);
                    continue;
                }
                if let [name, _, Token { kind: Kind::Str(path), .. }] = inside
                    && name.is_ident("path")
                {
                    path_attribute = Some(path.clone());
                }
                at = behind;
                continue;
            }
            let next = tokens.get(at + 1).and_then(Token::ident);
            match &tokens[at].kind {
                Kind::Punct('{') => depth += 1,
                Kind::Punct('}') => depth = depth.saturating_sub(1),
                Kind::Ident(word) if word == "use" => {
                    at = self.import(id, tokens, at);
                    continue;
                }
                Kind::Ident(word) if word == "mod" && depth == 0 && next.is_some() => {
                    let name = next.unwrap_or_default().to_owned();
                    at = self.child(id, &name, tokens, at, below, path_attribute.take())?;
                    continue;
                }
                Kind::Ident(word) if depth == 0 && next.is_some() && defines(word) => {
                    let name = next.unwrap_or_default().to_owned();
                    self.modules[id].items.insert(name);
                    // In `const fn name` and `macro_rules! name` the name comes one token later.
                    at += usize::from(word != "const" || next != Some("fn"));
                }
                Kind::Ident(word) if word == "macro_rules" => {
                    self.modules[id]
                        .items
                        .extend(tokens.get(at + 2).and_then(Token::ident).map(str::to_owned));
                }
                Kind::Ident(word) if word == "impl" && depth == 0 => {
                    self.modules[id].impls.extend(implemented(&tokens[at + 1..]));
                }
                Kind::Ident(_) => {
                    at = self.path(id, tokens, at);
                    continue;
                }
                Kind::PathSep | Kind::Str(_) | Kind::Punct(_) => {}
            }
            at += 1;
        }
        Ok(())
    }

    /// Reads `mod name;` or `mod name { … }`. Returns the index behind it.
    fn child(
        &mut self,
        id: usize,
        name: &str,
        tokens: &[Token],
        at: usize,
        below: &Path,
        given: Option<String>,
    ) -> Result<usize, String> {
        let inner = below.join(name);
        let end = item_end(tokens, at);
        let child = if tokens.get(at + 2).is_some_and(|token| token.is('{')) {
            let file = self.modules[id].file.clone();
            let child = self.add(file, Some(id));
            self.body(child, &tokens[at + 3..end.saturating_sub(1)], &inner)?;
            child
        } else {
            let own = self.modules[id].file.parent().unwrap_or(below);
            let candidates = match given {
                Some(path) => vec![own.join(path)],
                None => vec![below.join(format!("{name}.rs")), inner.join("mod.rs")],
            };
            let file = candidates.iter().find(|file| file.exists()).cloned();
            let file = file.ok_or_else(|| {
                format!("{}: no file for mod {name}", self.modules[id].file.display())
            })?;
            self.file(file, &inner, Some(id))?
        };
        self.modules[id].children.insert(name.to_owned(), child);
        Ok(end)
    }

    /// Reads `use …;`. Returns the index behind it.
    fn import(&mut self, id: usize, tokens: &[Token], at: usize) -> usize {
        let end = (at..tokens.len()).find(|&at| tokens[at].is(';')).unwrap_or(tokens.len());
        // `use<'a>` in a type is not an import.
        if tokens.get(at + 1).is_some_and(|token| token.is('<')) {
            return at + 1;
        }
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        let reexported = before.is_some_and(|token| token.is_ident("pub") || token.is(')'));
        let mut rest = at + 1;
        while rest < end {
            self.use_tree(id, &tokens[..end], &mut rest, &[], reexported);
            rest += 1;
        }
        end + 1
    }

    fn use_tree(
        &mut self,
        id: usize,
        tokens: &[Token],
        at: &mut usize,
        prefix: &[String],
        reexported: bool,
    ) {
        let mut path = prefix.to_vec();
        let mut line = 0;
        while let Some(token) = tokens.get(*at) {
            line = token.line;
            match &token.kind {
                Kind::Ident(word) if word == "as" => {
                    let name = tokens.get(*at + 1).and_then(Token::ident).unwrap_or("_").to_owned();
                    *at += 2;
                    self.modules[id].uses.push(Use { name, path, line, reexported });
                    return;
                }
                Kind::Ident(word) => path.push(word.clone()),
                Kind::Punct('*') => path.push("*".to_owned()),
                Kind::Punct('{') => {
                    *at += 1;
                    while *at < tokens.len() && !tokens[*at].is('}') {
                        self.use_tree(id, tokens, at, &path, reexported);
                        if tokens.get(*at).is_some_and(|token| token.is(',')) {
                            *at += 1;
                        }
                    }
                    *at += 1;
                    return;
                }
                Kind::Punct(_) => break,
                Kind::PathSep | Kind::Str(_) => {}
            }
            *at += 1;
        }
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        if let Some(name) = path.last().cloned() {
            self.modules[id].uses.push(Use { name, path, line, reexported });
        }
    }

    /// Reads a path in the code. Returns the index behind it.
    fn path(&mut self, id: usize, tokens: &[Token], from: usize) -> usize {
        let mut path = Vec::new();
        let mut at = from;
        while let Some(word) = tokens.get(at).and_then(Token::ident) {
            path.push(word.to_owned());
            at += 1;
            if !tokens.get(at).is_some_and(|token| token.kind == Kind::PathSep) {
                break;
            }
            at += 1;
        }
        let follows =
            |kind: Kind| from.checked_sub(1).is_some_and(|before| tokens[before].kind == kind);
        if !follows(Kind::PathSep) && !follows(Kind::Punct('.')) {
            self.modules[id].words.insert(path[0].clone());
            if path.len() > 1 {
                self.modules[id].paths.push((path, tokens[from].line));
            }
        }
        at
    }

    /// Returns the target of a `path` that is written in the module `id`.
    fn resolve(&self, id: usize, path: &[String], follow: usize) -> Target {
        let Some((first, mut rest)) = path.split_first() else { return Target::Elsewhere };
        let mut module = match first.as_str() {
            "crate" => 0,
            "self" => id,
            "super" => match self.modules[id].parent {
                Some(parent) => parent,
                None => return Target::Elsewhere,
            },
            name => match self.name(id, name, follow) {
                Target::Module(module) => module,
                found => return found,
            },
        };
        while let Some((name, behind)) = rest.split_first() {
            let next = match name.as_str() {
                "super" => self.modules[module].parent.map_or(Target::Elsewhere, Target::Module),
                "self" | "*" => Target::Module(module),
                name => self.name(module, name, follow),
            };
            match next {
                Target::Module(inner) => module = inner,
                // A macro may define the item, so the item counts as defined in the module's file.
                Target::Elsewhere => return Target::Item(module),
                Target::Item(_) => return next,
            }
            rest = behind;
        }
        Target::Module(module)
    }

    /// Returns what `name` means in the module `id`.
    fn name(&self, id: usize, name: &str, follow: usize) -> Target {
        let module = &self.modules[id];
        if let Some(&child) = module.children.get(name) {
            return Target::Module(child);
        }
        if module.items.contains(name) {
            return Target::Item(id);
        }
        let Some(follow) = follow.checked_sub(1) else { return Target::Elsewhere };
        if let Some(found) = module.uses.iter().find(|found| found.name == name) {
            // A path of one name, as in `use name;`, names another crate.
            return if found.path.len() == 1 {
                Target::Elsewhere
            } else {
                self.resolve(id, &found.path, follow)
            };
        }
        for glob in module.uses.iter().filter(|found| found.name == "*") {
            if let Target::Module(inner) = self.resolve(id, &glob.path, follow)
                && inner != id
            {
                match self.name(inner, name, follow) {
                    Target::Elsewhere => {}
                    found => return found,
                }
            }
        }
        Target::Elsewhere
    }

    fn is_above(&self, ancestor: usize, mut id: usize) -> bool {
        while let Some(parent) = self.modules[id].parent {
            if parent == ancestor {
                return true;
            }
            id = parent;
        }
        false
    }

    /// Returns which file imports which.
    pub(crate) fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (id, module) in self.modules.iter().enumerate() {
            let uses = module
                .uses
                .iter()
                .filter(|found| !found.reexported || module.words.contains(&found.name));
            let uses = uses.map(|found| (&found.path, found.line));
            for (path, line) in uses.chain(module.paths.iter().map(|(path, line)| (path, *line))) {
                let Target::Item(target) = self.resolve(id, path, FOLLOW_MAX) else { continue };
                let goes_on = path.last().is_some_and(|name| module.impls.contains(name));
                if goes_on && self.is_above(target, id) {
                    continue;
                }
                let target = &self.modules[target].file;
                if *target != module.file {
                    let from = edges.entry(module.file.clone()).or_default();
                    let edge =
                        from.entry(target.clone()).or_insert(Edge { line, names: BTreeSet::new() });
                    edge.line = edge.line.min(line);
                    edge.names.extend(path.iter().rev().find(|name| *name != "*").cloned());
                }
            }
        }
        edges
    }
}

/// Returns the type of an `impl`: the last name before the braces, without names in generics and
/// bounds.
fn implemented(tokens: &[Token]) -> Option<String> {
    let (mut depth, mut name) = (0_i32, None);
    for (at, token) in tokens.iter().enumerate() {
        match &token.kind {
            Kind::Punct('<') => depth += 1,
            // The `>` of an arrow (`->`) does not close generics.
            Kind::Punct('>') if at == 0 || !tokens[at - 1].is('-') => depth -= 1,
            Kind::Punct('{') => break,
            Kind::Ident(word) if depth == 0 && word == "where" => break,
            Kind::Ident(word) if depth == 0 => name = Some(word.clone()),
            Kind::Ident(_) | Kind::PathSep | Kind::Str(_) | Kind::Punct(_) => {}
        }
    }
    name
}

fn defines(keyword: &str) -> bool {
    matches!(keyword, "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union")
}

/// The groups of files that import each other, directly or through others, each sorted.
pub(crate) fn circles(edges: &Edges) -> Vec<Vec<PathBuf>> {
    let reach = |from: &PathBuf| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            for next in edges.get(file).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> =
        edges.keys().map(|file| (file, reach(file))).collect();
    let mut found: BTreeSet<Vec<PathBuf>> = BTreeSet::new();
    for (file, beyond) in &reached {
        let back =
            |other: &&PathBuf| reached.get(*other).is_some_and(|beyond| beyond.contains(*file));
        let group: Vec<PathBuf> = beyond.iter().filter(back).cloned().collect();
        if !group.is_empty() {
            found.insert(group);
        }
    }
    found.into_iter().collect()
}

/// Returns a finding for every import that points the wrong way, in the crate in `directory`.
///
/// # Errors
/// When its files cannot be read.
pub(crate) fn findings(directory: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for root in roots(directory)? {
        let edges = Tree::read(&root)?.edges();
        for group in circles(&edges) {
            let mut text = format!(
                "{}: {} files import each other in a circle",
                directory.display(),
                group.len()
            );
            for from in &group {
                for (to, edge) in
                    edges.get(from).into_iter().flatten().filter(|(to, _)| group.contains(to))
                {
                    let _ = write!(text, "\n    {}", import(from, to, edge));
                }
            }
            found.push(text);
        }
        for (from, imports) in &edges {
            for (to, edge) in imports {
                if let Some(why) = layers::uphill(from, to) {
                    found
                        .push(format!("{}: imports a higher layer: {why}", import(from, to, edge)));
                }
            }
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The root files of the library and of the programs of the crate in `directory`.
fn roots(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let source = directory.join("src");
    let mut roots = vec![source.join("lib.rs"), source.join("main.rs")];
    let programs = source.join("bin");
    if programs.exists() {
        for entry in fs::read_dir(&programs).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            roots.push(if path.is_dir() { path.join("main.rs") } else { path });
        }
    }
    roots.retain(|root| root.exists());
    Ok(roots)
}

fn import(from: &Path, to: &Path, edge: &Edge) -> String {
    let names: Vec<&str> = edge.names.iter().take(NAMES_MAX).map(String::as_str).collect();
    let more = if edge.names.len() > NAMES_MAX { ", …" } else { "" };
    format!("{}:{} -> {} ({}{more})", from.display(), edge.line, to.display(), names.join(", "))
}

/// `cargo xtask imports [CRATE…]`: prints the findings. Returns whether there are none.
///
/// # Errors
/// When a crate or its files cannot be read.
pub(crate) fn command(only: &[String]) -> Result<bool, String> {
    let members = layers::members()?;
    let mut found = layers::between_crates(&members)?;
    found.extend(planted::in_what_ships()?);
    for member in &members {
        if only.is_empty() || only.iter().any(|name| member.ends_with(name)) {
            found.extend(findings(member)?);
        }
    }
    for finding in &found {
        println!("{finding}");
    }
    println!("imports: {} findings in {} crates", found.len(), members.len());
    Ok(found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a crate with these files and their contents, and returns its imports.
    fn edges(name: &str, files: &[(&str, &str)]) -> Vec<(String, String)> {
        let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        for (file, text) in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().expect("a directory")).expect("to make it");
            fs::write(file, text).expect("to write it");
        }
        let edges = Tree::read(&root.join("lib.rs")).expect("a crate").edges();
        let short =
            |file: &Path| file.strip_prefix(&root).expect("below the root").display().to_string();
        let pairs =
            edges.iter().flat_map(|(from, to)| to.keys().map(move |to| (short(from), short(to))));
        let pairs = pairs.collect();
        fs::remove_dir_all(&root).expect("to remove it");
        pairs
    }

    fn pair(from: &str, to: &str) -> (String, String) {
        (from.to_owned(), to.to_owned())
    }

    #[test]
    fn a_path_leads_through_re_exports_to_the_file_of_the_item() {
        let found = edges(
            "paths",
            &[
                ("lib.rs", "mod a; mod b; pub use a::inner::Item;"),
                ("a/mod.rs", "pub mod inner; pub use inner::*;"),
                ("a/inner.rs", "pub struct Item; pub const N: u8 = 1;"),
                ("b.rs", "use crate::{Item, a}; fn f() -> u8 { a::N + crate::a::Item::new() }"),
            ],
        );
        assert_eq!(found, [pair("b.rs", "a/inner.rs")]);
    }

    #[test]
    fn tests_and_a_type_that_goes_on_are_no_imports() {
        let found = edges(
            "tests",
            &[
                ("lib.rs", "mod a; mod b; pub struct Whole { part: a::Part } const MAX: u8 = 1;"),
                ("a.rs", "use crate::Whole; pub struct Part; impl Whole { fn f() {} }"),
                ("b.rs", "#[cfg(test)] mod tests { use crate::a::Part; } use super::{Whole, MAX};"),
            ],
        );
        assert_eq!(found, [pair("b.rs", "lib.rs"), pair("lib.rs", "a.rs")]);
    }

    #[test]
    fn files_that_need_each_other_are_a_circle() {
        let edge = || Edge { line: 1, names: BTreeSet::new() };
        let mut edges = Edges::new();
        for (from, to) in [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")] {
            edges.entry(from.into()).or_default().insert(to.into(), edge());
        }
        assert_eq!(circles(&edges), [[PathBuf::from("b"), PathBuf::from("c")]]);
    }
}
