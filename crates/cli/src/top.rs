//! `epicepoch top`: watches a cluster in the terminal. It shows what the page for operators shows:
//! who leads, how each node does, warnings with what to do, and rates. It asks each node for
//! `/status` again and again, and changes nothing.
//!
//! - [`status`]: the answer of a node; [`rates`]: what it did between two; [`model`]: what is known of
//!   the nodes; [`warnings`] and [`events`]: what needs attention.
//! - [`draw`]: the screen as text, a pure function of the model; [`terminal`]: the terminal.

mod draw;
mod events;
mod figures;
mod model;
mod rates;
mod status;
mod terminal;
mod warnings;

use std::io::{IsTerminal, Read, stdin};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{ArgMatches, Command};
use epicepoch_client::dial::{Alpn, Dialer};
use epicepoch_config::{Environment, variable};
use epicepoch_wire::http::PATH_STATUS;
use serde_json::Value;

use crate::addresses::{self, TokenFor};
use crate::arguments::{EVERY_NODE_IS_ASKED, client_arguments, text};
use crate::expected::Expected;
use crate::failure::Failure;
use crate::operator::{self, Order, RequestError};
use crate::output;
use crate::signals;
use crate::top::model::{Model, Unanswered};
use crate::top::terminal::Terminal;
use crate::top::warnings::Attention;

/// The shortest and the longest time between two questions to a node.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_mins(1));
/// At most so many events wait; then their senders wait, too.
const EVENTS_MAX: usize = 256;
/// The screen is drawn again after this time, even if nothing has come: ages grow.
const REDRAW: Duration = Duration::from_millis(500);

pub(crate) fn command() -> Command {
    Command::new("top")
        .about("Watch a cluster in the terminal: who leads, nodes, warnings and rates")
        .long_about(
            "Watch a cluster in the terminal: who leads and since when, how each node does, what \
             needs attention and what to do about it, and rates and latencies of the last minutes. \
             The same is in a browser at /ui of each node. The command changes nothing.\n\n\
             Members that are not named in --addr are asked at the address that the cluster gives \
             to its clients.",
        )
        .after_help(format!(
            "Keys: q or Ctrl-C ends; the arrows up and down choose the node of the charts.\n\n\
             {EVERY_NODE_IS_ASKED}\n\n\
             NO_COLOR turns colours off. Without a terminal, use epicepoch status --watch.\n\n\
             Example:\n  epicepoch top --addr n1:8080,n2:8080,n3:8080",
        ))
        .args(client_arguments())
        .arg(
            text("interval", "TIME", "How often each node is asked, 200ms to 60s")
                .default_value("1s"),
        )
}

/// What the loop of the command waits for.
#[derive(Debug)]
enum Event {
    Key(Key),
    /// The answer of the node at this address.
    Answer(String, Result<Value, Unanswered>),
    /// The process is told to stop, or its terminal is gone.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Quit,
    Up,
    Down,
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let interval = interval(matches)?;
    let (addrs, _) = addresses::given(matches, environment)?;
    let tls = addresses::tls(matches, environment)?;
    let token = addresses::token(matches, environment, TokenFor::Operators)?;
    let asker = Asker {
        dialer: Dialer::new(tls.as_ref(), Alpn::Http1).with_token(token),
        timeout: operator::attempt_timeout(matches)?,
        expected: Expected::of(matches, environment)?,
    };
    let is_colour = variable(environment, "NO_COLOR").map_err(Failure::usage)?.is_none();
    let term = variable(environment, "TERM").map_err(Failure::usage)?;
    if !stdin().is_terminal() || !output::moves_cursor(term.as_deref()) {
        return Err(Failure::usage(anyhow!(
            "top needs a terminal that can move its cursor; without one, use epicepoch status --watch"
        )));
    }
    let (sender, events) = sync_channel(EVENTS_MAX);
    let stop = sender.clone();
    let mut terminal = Terminal::open()?;
    // If the loop has ended, there is nothing to stop.
    let stop = move || drop(stop.send(Event::Stop));
    signals::watch_and_leave(stop, terminal.mode_back())?;
    let keys = sender.clone();
    thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&keys))?;
    let began = Instant::now();
    let now_ms = || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (mut model, mut attention) = (Model::new(addrs, interval), Attention::default());
    let mut due = began;
    loop {
        if Instant::now() >= due {
            due = Instant::now() + interval;
            for addr in model.poll_asks(now_ms()) {
                asker.clone().ask(addr, sender.clone())?;
            }
        }
        let (size, at_ms) = (terminal.size()?, now_ms());
        attention.judge(&model, at_ms);
        let lines = draw::screen(&model, &attention.found, at_ms, size);
        terminal.show(&lines, size, is_colour)?;
        let wait = due.saturating_duration_since(Instant::now()).min(REDRAW);
        match events.recv_timeout(wait) {
            Ok(Event::Key(Key::Quit) | Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::Key(Key::Up)) => model.choose(-1, now_ms()),
            Ok(Event::Key(Key::Down)) => model.choose(1, now_ms()),
            Ok(Event::Answer(addr, answer)) => model.record(&addr, answer, now_ms()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn interval(matches: &ArgMatches) -> Result<Duration, Failure> {
    let text = matches.get_one::<String>("interval").map_or("", String::as_str);
    let (min, max) = INTERVAL;
    addresses::duration(text, max).filter(|interval| *interval >= min).ok_or_else(|| {
        Failure::usage(anyhow!(
            "--interval is {text:?}; allowed is a whole number with its unit, from 200ms to 60s"
        ))
    })
}

/// Asks nodes for `/status`.
#[derive(Clone)]
struct Asker {
    dialer: Dialer,
    timeout: Duration,
    expected: Option<Expected>,
}

impl Asker {
    /// Asks one node, on a thread of its own, which ends after the timeout at the latest.
    fn ask(self, addr: String, answers: SyncSender<Event>) -> Result<(), Failure> {
        let asking = move || {
            let order = Order::look(PATH_STATUS).expecting(self.expected);
            let answer = order.ask(&self.dialer, &addr, Instant::now() + self.timeout);
            let answer = answer.map_err(|error| {
                let is_denied = matches!(error, RequestError::Denied(_));
                Unanswered { text: error.into_text(), is_denied }
            });
            // If the loop has ended, nothing needs the answer.
            drop(answers.send(Event::Answer(addr, answer)));
        };
        thread::Builder::new().name("ask".to_owned()).spawn(asking)?;
        Ok(())
    }
}

/// Reads keys until the terminal is gone, or the loop has ended.
fn read_keys(events: &SyncSender<Event>) {
    let (mut bytes, mut keys) = ([0; 64], Keys::default());
    loop {
        let count = match stdin().read(&mut bytes) {
            // If the loop has ended, there is nothing to stop.
            Ok(0) | Err(_) => return drop(events.send(Event::Stop)),
            Ok(count) => count,
        };
        for key in bytes[..count].iter().filter_map(|byte| keys.take(*byte)) {
            if events.send(Event::Key(key)).is_err() {
                return;
            }
        }
    }
}

/// Tells keys from the bytes that a terminal in raw mode sends, in whatever pieces they come.
#[derive(Debug, Default)]
enum Keys {
    #[default]
    Ground,
    /// After ESC, which begins the sequence of an arrow.
    Escape,
    /// After ESC and `[` or `O`: parameters come before the last byte.
    Sequence,
}

impl Keys {
    fn take(&mut self, byte: u8) -> Option<Key> {
        const CTRL_C: u8 = 3;
        const ESC: u8 = 0x1b;
        let (next, key) = match (&self, byte) {
            (_, CTRL_C) => (Self::Ground, Some(Key::Quit)),
            (_, ESC) => (Self::Escape, None),
            (Self::Escape, b'[' | b'O') | (Self::Sequence, 0x20..=0x3f) => (Self::Sequence, None),
            (Self::Sequence, b'A') => (Self::Ground, Some(Key::Up)),
            (Self::Sequence, b'B') => (Self::Ground, Some(Key::Down)),
            (Self::Sequence, _) => (Self::Ground, None),
            (_, b'q' | b'Q') => (Self::Ground, Some(Key::Quit)),
            (_, b'k') => (Self::Ground, Some(Key::Up)),
            (_, b'j') => (Self::Ground, Some(Key::Down)),
            _ => (Self::Ground, None),
        };
        *self = next;
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_their_bytes() {
        let keys = |bytes: &[u8]| {
            let mut keys = Keys::default();
            bytes.iter().filter_map(|byte| keys.take(*byte)).collect::<Vec<_>>()
        };
        assert_eq!(keys(b"qQ\x03"), [Key::Quit; 3]);
        assert_eq!(keys(b"\x1b[A\x1bOBkj"), [Key::Up, Key::Down, Key::Up, Key::Down]);
        assert_eq!(keys(b"x\x1b[5~\x1b[1;5C\x1b[Z"), [], "page down, and others that mean nothing");
        assert_eq!(keys(b"\x1b\x1b[Aq"), [Key::Up, Key::Quit]);
    }
}
