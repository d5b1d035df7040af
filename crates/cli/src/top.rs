//! `epicepoch top`: watches a cluster in the terminal. It shows what the page for operators shows:
//! who leads, how each node does, warnings with what to do, and rates. It asks each node for
//! `/status` again and again, and changes nothing.
//!
//! - [`model`]: what is known of the nodes; [`warnings`]: what needs attention.
//! - [`draw`]: the screen as text, a pure function of the model; [`terminal`]: the terminal.

mod draw;
mod figures;
mod model;
mod terminal;
mod warnings;

use std::io::{IsTerminal, Read, stdin, stdout};
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
use crate::operator::{self, Order};
use crate::signals;
use crate::top::model::Model;
use crate::top::terminal::Terminal;

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
    /// The answer of the node at this place in the model.
    Answer(usize, Result<Value, String>),
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
    let is_dumb = variable(environment, "TERM").map_err(Failure::usage)? == Some("dumb".to_owned());
    if !stdin().is_terminal() || !stdout().is_terminal() || is_dumb {
        return Err(Failure::usage(anyhow!(
            "top needs a terminal that can move its cursor; without one, use epicepoch status --watch"
        )));
    }
    let (sender, events) = sync_channel(EVENTS_MAX);
    let stop = sender.clone();
    // If the loop has ended, there is nothing to stop.
    signals::watch(move || drop(stop.send(Event::Stop)))?;
    let mut terminal = Terminal::open()?;
    let keys = sender.clone();
    thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&keys))?;
    let began = Instant::now();
    let now_ms = || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut model = Model::new(addrs, interval);
    let mut due = began;
    loop {
        if Instant::now() >= due {
            due = Instant::now() + interval;
            for (at, addr) in model.poll_asks(now_ms()) {
                asker.clone().ask(at, addr, sender.clone())?;
            }
        }
        let size = terminal.size()?;
        terminal.show(&draw::screen(&model, now_ms(), size), size, is_colour)?;
        let wait = due.saturating_duration_since(Instant::now()).min(REDRAW);
        match events.recv_timeout(wait) {
            Ok(Event::Key(Key::Quit) | Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::Key(Key::Up)) => model.choose(-1, now_ms()),
            Ok(Event::Key(Key::Down)) => model.choose(1, now_ms()),
            Ok(Event::Answer(at, answer)) => model.record(at, answer, now_ms()),
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
    fn ask(self, at: usize, addr: String, answers: SyncSender<Event>) -> Result<(), Failure> {
        let asking = move || {
            let order = Order::look(PATH_STATUS).expecting(self.expected);
            let answer = order.ask(&self.dialer, &addr, Instant::now() + self.timeout);
            // If the loop has ended, nothing needs the answer.
            drop(
                answers.send(Event::Answer(at, answer.map_err(operator::RequestError::into_text))),
            );
        };
        thread::Builder::new().name("ask".to_owned()).spawn(asking)?;
        Ok(())
    }
}

/// Reads keys until the terminal is gone, or the loop has ended.
fn read_keys(events: &SyncSender<Event>) {
    let mut bytes = [0; 64];
    loop {
        let event = match stdin().read(&mut bytes) {
            Ok(0) | Err(_) => Event::Stop,
            Ok(count) => match key(&bytes[..count]) {
                Some(key) => Event::Key(key),
                None => continue,
            },
        };
        let is_last = matches!(event, Event::Stop);
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// The key that a terminal in raw mode sends as these bytes.
fn key(bytes: &[u8]) -> Option<Key> {
    const CTRL_C: u8 = 3;
    match bytes {
        [b'q' | b'Q' | CTRL_C, ..] => Some(Key::Quit),
        [b'k', ..] | b"\x1b[A" | b"\x1bOA" => Some(Key::Up),
        [b'j', ..] | b"\x1b[B" | b"\x1bOB" => Some(Key::Down),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_their_bytes() {
        let quits: [&[u8]; 3] = [b"q", b"Q", b"\x03"];
        assert!(quits.iter().all(|bytes| key(bytes) == Some(Key::Quit)));
        assert_eq!((key(b"\x1b[A"), key(b"\x1bOB")), (Some(Key::Up), Some(Key::Down)));
        assert_eq!((key(b"x"), key(b"\x1b"), key(b"\x1b[5~")), (None, None, None));
    }
}
