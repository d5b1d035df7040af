//! Rust source as tokens, which is enough to find items, paths and test names. It never parses an
//! expression.

/// Kind of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or keyword, without `r#`.
    Ident(String),
    /// `::`
    PathSep,
    /// The text between the quotes of a string.
    Str(String),
    /// Any other single character. Numbers, character literals and lifetimes are left out.
    Punct(char),
}

/// A token and the line in which it begins, from 1.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    /// Kind of the token.
    pub(crate) kind: Kind,
    /// Line in which it begins.
    pub(crate) line: usize,
}

impl Token {
    /// Whether this is the name or keyword `name`.
    pub(crate) fn is_ident(&self, name: &str) -> bool {
        matches!(&self.kind, Kind::Ident(ident) if ident == name)
    }

    /// Whether this is the character `punct`.
    pub(crate) fn is(&self, punct: char) -> bool {
        self.kind == Kind::Punct(punct)
    }

    /// The name, if the token is one.
    pub(crate) fn ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            Kind::PathSep | Kind::Str(_) | Kind::Punct(_) => None,
        }
    }
}

/// Splits `text` into tokens. Comments are left out.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: text, line: 1, out: Vec::new() };
    while !lexer.rest.is_empty() {
        lexer.step();
    }
    lexer.out
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    out: Vec<Token>,
}

impl Lexer<'_> {
    fn step(&mut self) {
        let first = self.rest.chars().next().unwrap_or(' ');
        if self.rest.starts_with("//") {
            self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.skip(block_comment(self.rest));
        } else if let Some((open, hashes)) = string_start(self.rest) {
            self.string(open, hashes);
        } else if first == '\'' {
            self.skip(quote(self.rest));
        } else if first.is_alphabetic() || first == '_' {
            let word = word(self.rest);
            let name = word.strip_prefix("r#").unwrap_or(word);
            self.push(Kind::Ident(name.to_owned()), word.len());
        } else if first.is_ascii_digit() {
            self.skip(word(self.rest).len());
        } else if self.rest.starts_with("::") {
            self.push(Kind::PathSep, 2);
        } else if first.is_whitespace() {
            self.skip(first.len_utf8());
        } else {
            self.push(Kind::Punct(first), first.len_utf8());
        }
    }

    fn string(&mut self, open: usize, hashes: Option<usize>) {
        let body = &self.rest[open..];
        let (length, close) = match hashes {
            None => (plain_end(body), 1),
            Some(hashes) => {
                let end = format!("\"{}", "#".repeat(hashes));
                (body.find(&end).unwrap_or(body.len()), end.len())
            }
        };
        let text = body[..length].to_owned();
        self.push(Kind::Str(text), (open + length + close).min(self.rest.len()));
    }

    fn push(&mut self, kind: Kind, length: usize) {
        self.out.push(Token { kind, line: self.line });
        self.skip(length);
    }

    fn skip(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at(length);
        self.line += gone.matches('\n').count();
        self.rest = rest;
    }
}

/// The name at the beginning of `text`, including its `r#`.
fn word(text: &str) -> &str {
    let raw = if text.starts_with("r#") { 2 } else { 0 };
    let end =
        text[raw..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len() - raw);
    &text[..raw + end]
}

/// Length of the block comment at the beginning of `text`. Block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// If `text` begins with a string, returns the offset of the string's content and, for a raw
/// string, the number of its hashes.
fn string_start(text: &str) -> Option<(usize, Option<usize>)> {
    let prefix = text.find(|c: char| !c.is_ascii_lowercase())?;
    let after = &text[prefix..];
    match &text[..prefix] {
        "" | "b" | "c" if after.starts_with('"') => Some((prefix + 1, None)),
        "r" | "br" | "cr" => {
            let hashes = after.find(|c| c != '#')?;
            after[hashes..].starts_with('"').then_some((prefix + hashes + 1, Some(hashes)))
        }
        _ => None,
    }
}

/// Offset of the closing quote.
fn plain_end(body: &str) -> usize {
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    body.len()
}

/// Length of the character literal or lifetime at the beginning of `text`.
fn quote(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    let Some((_, first)) = chars.next() else { return 1 };
    let second = chars.next();
    if first == '\\' {
        // The escaped character may itself be a quote.
        return text[3..].find('\'').map_or(text.len(), |end| end + 4);
    }
    match second {
        Some((at, '\'')) => at + 1,
        _ => 1 + word(&text[1..]).len(),
    }
}

/// The index behind the item at `from`: after its `;` or its closing brace.
pub(crate) fn item_end(tokens: &[Token], from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token.kind {
            Kind::Punct('(' | '[' | '{') => depth += 1,
            Kind::Punct(c @ (')' | ']' | '}')) => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' {
                    return at + 1;
                }
            }
            Kind::Punct(';' | ',') if depth == 0 => return at + 1,
            Kind::Ident(_) | Kind::PathSep | Kind::Str(_) | Kind::Punct(_) => {}
        }
    }
    tokens.len()
}

/// Reads the attribute whose `#` is at `at`. Returns the tokens between its brackets, and the index
/// behind it.
pub(crate) fn attribute(tokens: &[Token], at: usize) -> Option<(&[Token], usize)> {
    if !tokens.get(at)?.is('#') {
        return None;
    }
    let open = if tokens.get(at + 1)?.is('!') { at + 2 } else { at + 1 };
    if !tokens.get(open)?.is('[') {
        return None;
    }
    let mut depth = 0_usize;
    for (end, token) in tokens.iter().enumerate().skip(open) {
        if token.is('[') {
            depth += 1;
        } else if token.is(']') {
            depth -= 1;
            if depth == 0 {
                return Some((&tokens[open + 1..end], end + 1));
            }
        }
    }
    None
}

/// Whether an attribute limits its item to test builds.
pub(crate) fn is_for_tests(attribute: &[Token]) -> bool {
    let names: Vec<&str> = attribute.iter().filter_map(Token::ident).collect();
    matches!(
        names.as_slice(),
        ["cfg", "test" | "doctest", ..] | ["cfg", "all", "test", ..] | ["test"]
    ) || matches!(names.as_slice(), ["tokio", "test", ..])
}

/// Whether an attribute makes its function a test.
pub(crate) fn is_test(attribute: &[Token]) -> bool {
    is_for_tests(attribute) && !attribute.iter().any(|token| token.is_ident("cfg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        tokens(text).iter().filter_map(|token| token.ident().map(str::to_owned)).collect()
    }

    #[test]
    fn comments_strings_and_characters_are_no_names() {
        let text =
            "a /* b /* c */ d */ // e\n \"f \\\" g\" r#\"h \" i\"# 'j' '\\'' &'k l b\"m\" r#type";
        assert_eq!(names(text), ["a", "l", "type"]);
    }

    #[test]
    fn a_token_knows_its_line() {
        let lines: Vec<usize> = tokens("a\n\"x\ny\" b").iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 2, 3]);
    }

    #[test]
    fn an_item_ends_behind_its_braces_or_its_semicolon() {
        let all = tokens("fn f(a: [u8; 2]) { x; } const A: u8 = 1; rest");
        let function = item_end(&all, 0);
        assert!(all[function].is_ident("const"));
        assert!(all[item_end(&all, function)].is_ident("rest"));
    }

    #[test]
    fn attributes_of_tests_are_known() {
        let is = |text: &str| is_for_tests(attribute(&tokens(text), 0).expect("an attribute").0);
        assert!(is("#[cfg(test)]") && is("#[test]") && is("#[cfg(all(test, feature = \"loom\"))]"));
        assert!(!is("#[cfg(not(all(test, loom)))]") && !is("#[derive(Debug)]"));
    }
}
