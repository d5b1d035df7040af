//! The terminal of `epicepoch top`: the alternate screen in raw mode, until this is dropped. It
//! draws with the escape sequences of ECMA-48, which every terminal of today has.

use std::fmt::Write as _;
use std::io::{self, Write, stdin, stdout};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::top::draw::{Line, Size, Style};

/// Leaves the screen of the shell as it is, and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[0m\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// The size of a terminal that does not say its own.
const SIZE: Size = Size { columns: 80, lines: 24 };

/// A terminal that was set up for drawing. Dropping it puts everything back, also after a panic.
pub(super) struct Terminal {
    before: Termios,
}

impl Terminal {
    /// Sets the terminal up.
    ///
    /// # Errors
    /// Standard input or output is no terminal, or it is gone.
    pub(super) fn open() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        let terminal = Self { before };
        put(ENTER)?;
        Ok(terminal)
    }

    /// Returns a function that puts the mode of the terminal back without waiting. A process that
    /// ends at once calls it.
    pub(super) fn mode_back(&self) -> impl FnOnce() + Send + 'static {
        let before = self.before.clone();
        // If the terminal is gone, there is nothing to put back.
        move || {
            let _gone = tcsetattr(stdin(), OptionalActions::Now, &before);
        }
    }

    /// The size now: people resize windows.
    ///
    /// # Errors
    /// The terminal is gone.
    #[expect(clippy::unused_self, reason = "only an open terminal has a size")]
    pub(super) fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(stdout())?;
        let is_known = size.ws_col > 0 && size.ws_row > 0;
        let known = Size { columns: size.ws_col.into(), lines: size.ws_row.into() };
        Ok(if is_known { known } else { SIZE })
    }

    /// Shows the lines in place of what was shown before.
    ///
    /// # Errors
    /// The terminal is gone.
    #[expect(clippy::unused_self, reason = "only an open terminal shows something")]
    pub(super) fn show(&mut self, lines: &[Line], size: Size, is_colour: bool) -> io::Result<()> {
        put(&paint(lines, size, is_colour))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to put back.
        let _gone = put(LEAVE);
        let _gone = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The bytes that show the lines. What does not fit is left out.
fn paint(lines: &[Line], size: Size, is_colour: bool) -> String {
    let mut text = HOME.to_owned();
    for (at, line) in lines.iter().take(size.lines).enumerate() {
        if at > 0 {
            text.push_str("\r\n");
        }
        // A line is cleared before it is written: in the last column, the cursor is still on the
        // character that it has just written.
        text.push_str(CLEAR_LINE);
        let mut left = size.columns;
        for (style, part) in line {
            // Nodes send most of the text. No character of it may command the terminal.
            let safe = part.chars().map(|it| if it.is_control() { '?' } else { it });
            let shown: String = safe.take(left).collect();
            left -= shown.chars().count();
            let _infallible = write!(text, "\x1b[0{}m{shown}", code(*style, is_colour));
        }
    }
    if lines.len() < size.lines {
        text.push_str("\r\n");
        text.push_str(CLEAR_BELOW);
    }
    text
}

/// The parameters that select a style. Without colours, only weight tells styles apart.
const fn code(style: Style, is_colour: bool) -> &'static str {
    match (style, is_colour) {
        (Style::Plain, _) | (Style::Good, false) => "",
        (Style::Dim, _) => ";2",
        (Style::Bold, _) | (Style::Soon | Style::Now, false) => ";1",
        (Style::Good, true) => ";32",
        (Style::Soon, true) => ";33",
        (Style::Now, true) => ";1;31",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out_and_colours_can_be_off() {
        let line = |text: &str| vec![(Style::Now, text.to_owned()), (Style::Plain, "end".into())];
        let lines = [line("four"), line("two"), line("three")];
        let size = Size { columns: 5, lines: 2 };
        let row = |text: &str, colour: &str, rest: &str| {
            format!("{CLEAR_LINE}\x1b[0{colour}m{text}\x1b[0m{rest}")
        };
        let of =
            |colour| format!("{HOME}{}\r\n{}", row("four", colour, "e"), row("two", colour, "en"));
        assert_eq!(paint(&lines, size, true), of(";1;31"));
        assert_eq!(paint(&lines, size, false), of(";1"));
    }

    #[test]
    fn what_a_node_sends_cannot_command_the_terminal() {
        let line = vec![(Style::Plain, "a\x1b[2Jb\u{9b}c\n".to_owned())];
        let painted = paint(&[line], Size { columns: 20, lines: 1 }, false);
        assert_eq!(painted, format!("{HOME}{CLEAR_LINE}\x1b[0ma?[2Jb?c?"));
        let painted = paint(&[], Size { columns: 20, lines: 1 }, false);
        assert_eq!(painted, format!("{HOME}\r\n{CLEAR_BELOW}"), "the rest of the screen");
    }
}
