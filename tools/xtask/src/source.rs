//! Rust source as a flat list of tokens, which is enough to find items, paths and test names. It
//! never parses an expression.

use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};

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

/// Splits `text` into tokens. Comments are left out, and so are lifetimes.
///
/// # Panics
/// When the compiler could not split it either: a quote or a bracket is not closed.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let stream: TokenStream = text.parse().unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut out = Vec::new();
    flatten(stream, &mut out);
    out
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        at += 1;
        let mut push = |kind, span: Span| out.push(Token { kind, line: span.start().line });
        match tree {
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                push(Kind::Ident(name.trim_start_matches("r#").to_owned()), ident.span());
            }
            TokenTree::Punct(punct) => match (punct.as_char(), &trees[at..]) {
                ('#', rest) if let Some(length) = doc_comment(rest) => at += length,
                ('\'', _) => at += 1,
                (':', [TokenTree::Punct(next), ..])
                    if punct.spacing() == Spacing::Joint && next.as_char() == ':' =>
                {
                    at += 1;
                    push(Kind::PathSep, punct.span());
                }
                (c, _) => push(Kind::Punct(c), punct.span()),
            },
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let quoted = text.trim_start_matches(['b', 'c', 'r', '#']).starts_with('"');
                if let (true, Some((_, text))) = (quoted, text.split_once('"')) {
                    let text = text.rsplit_once('"').map_or("", |(text, _)| text);
                    push(Kind::Str(text.to_owned()), literal.span());
                }
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ('{', '}'),
                    Delimiter::Bracket => ('[', ']'),
                    Delimiter::Parenthesis | Delimiter::None => ('(', ')'),
                };
                push(Kind::Punct(open), group.span_open());
                flatten(group.stream(), out);
                let line = group.span_close().start().line;
                out.push(Token { kind: Kind::Punct(close), line });
            }
        }
    }
}

/// A doc comment is given as an attribute `#[doc = "…"]` or `#![doc = "…"]`. Returns the number of
/// trees behind the `#`, if this is one.
fn doc_comment(behind: &[TokenTree]) -> Option<usize> {
    let is_inner = matches!(behind.first()?, TokenTree::Punct(punct) if punct.as_char() == '!');
    let TokenTree::Group(group) = behind.get(usize::from(is_inner))? else { return None };
    let first = group.stream().into_iter().next()?;
    let is_doc = matches!(first, TokenTree::Ident(name) if name == "doc");
    is_doc.then_some(1 + usize::from(is_inner))
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
