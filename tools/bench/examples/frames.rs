//! Would one frame for the confirms of several workers cost less than a frame for each? W threads
//! ask one peer over TCP, in a closed loop, in two ways:
//!
//! - `own`: each thread has a connection, sends a frame with its question, and reads the answer.
//! - `shared`: the threads share `K` connections. A thread adds its question to a list. If a
//!   connection is free, the thread sends all questions of the list in one frame, reads the answer,
//!   and wakes the threads whose questions it has sent. Otherwise it sleeps until another thread
//!   has its answer, or until a connection is free.
//!
//! A thread is woken by `unpark`, which is one system call. A worker with an event loop would need
//! three: write and read of an eventfd, and the wait. So the costs of `shared` are lower bounds.
//!
//!     frames own|shared THREADS [CONNECTIONS] [SECONDS]
//!
//! Prints answers per second, the CPU time that an answer costs the asking process and the peer,
//! and how many questions a frame had.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Bytes of a question and of its answer: about those of a confirm frame.
const QUESTION_LEN: usize = 32;
const THREADS_MAX: usize = 64;

struct Pending {
    questions: Vec<(Thread, Arc<AtomicBool>)>,
    free: Vec<TcpStream>,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let word = |at: usize| arguments.get(at).map(String::as_str);
    let number = |at, default| word(at).map_or(default, |it| it.parse().expect("a number"));
    match word(0) {
        Some("peer") => peer(),
        Some(way @ ("own" | "shared")) => {
            let threads = number(1, 2).clamp(1, THREADS_MAX as u64) as usize;
            let connections = number(2, 1).clamp(1, THREADS_MAX as u64) as usize;
            measure(way, threads, connections, Duration::from_secs(number(3, 2)));
        }
        _ => eprintln!("usage: frames own|shared THREADS [CONNECTIONS] [SECONDS]"),
    }
}

/// Answers each frame with as many bytes, from a thread for each connection.
fn peer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    println!("{}", listener.local_addr().expect("address").port());
    for stream in listener.incoming() {
        let mut stream = stream.expect("accept");
        stream.set_nodelay(true).expect("nodelay");
        thread::spawn(move || {
            let mut buffer = [0; QUESTION_LEN * THREADS_MAX];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
        });
    }
}

fn measure(way: &str, threads: usize, connections: usize, time: Duration) {
    let program = env::current_exe().expect("own path");
    let mut child =
        Command::new(program).arg("peer").stdout(Stdio::piped()).spawn().expect("start");
    let port = read_port(&mut child);
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        stream
    };
    let (answers, frames) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let free = if way == "shared" { (0..connections).map(|_| connect()).collect() } else { vec![] };
    let shared = Arc::new(Mutex::new(Pending { questions: Vec::new(), free }));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let own = (way == "own").then(connect);
            let (answers, frames) = (answers.clone(), frames.clone());
            let (is_over, shared) = (is_over.clone(), shared.clone());
            thread::spawn(move || {
                let mut own = own;
                while !is_over.load(Ordering::Relaxed) {
                    match &mut own {
                        Some(stream) => exchange(stream, 1, &frames),
                        None => ask_shared(&shared, &frames, &is_over),
                    }
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    let count = || (answers.load(Ordering::Relaxed), frames.load(Ordering::Relaxed));
    let pids = [std::process::id(), child.id()];
    let (cpu, counted, begin) = (pids.map(cpu_ns), count(), Instant::now());
    thread::sleep(time);
    let (cpu_after, after, took) = (pids.map(cpu_ns), count(), begin.elapsed());
    is_over.store(true, Ordering::Relaxed);
    let given = (after.0 - counted.0) as f64;
    let spent = |at: usize| (cpu_after[at] - cpu[at]) as f64 / given / 1000.0;
    println!(
        "{way}, {threads} threads, {connections} shared connections: {:.0}/s, {:.2} us + {:.2} us, \
         {:.2} questions a frame",
        given / took.as_secs_f64(),
        spent(0),
        spent(1),
        given / (after.1 - counted.1).max(1) as f64,
    );
    child.kill().expect("kill");
    child.wait().expect("wait");
    // A thread may sleep for an answer of the peer that has ended. The process ends anyway.
    drop(workers);
    std::process::exit(0);
}

fn exchange(stream: &mut TcpStream, questions: usize, frames: &AtomicU64) {
    let mut buffer = [0; QUESTION_LEN * THREADS_MAX];
    let frame = &mut buffer[..QUESTION_LEN * questions];
    if stream.write_all(frame).and_then(|()| stream.read_exact(frame)).is_ok() {
        frames.fetch_add(1, Ordering::Relaxed);
    }
}

/// Asks over a shared connection, and returns when the answer has come.
fn ask_shared(shared: &Mutex<Pending>, frames: &AtomicU64, is_over: &AtomicBool) {
    let is_answered = Arc::new(AtomicBool::new(false));
    let lock = || shared.lock().expect("no thread panics");
    lock().questions.push((thread::current(), is_answered.clone()));
    while !is_answered.load(Ordering::Acquire) && !is_over.load(Ordering::Relaxed) {
        let taken = {
            let mut pending = lock();
            if pending.questions.is_empty() { None } else { pending.free.pop() }.map(|stream| {
                let questions = std::mem::take(&mut pending.questions);
                (stream, questions)
            })
        };
        let Some((mut stream, questions)) = taken else {
            thread::park();
            continue;
        };
        exchange(&mut stream, questions.len(), frames);
        let next = {
            let mut pending = lock();
            pending.free.push(stream);
            pending.questions.first().map(|it| it.0.clone())
        };
        // The connection is free again, so one of the waiting threads has to use it.
        if let Some(next) = next {
            next.unpark();
        }
        let own = thread::current().id();
        for (thread, is_answered) in questions {
            is_answered.store(true, Ordering::Release);
            if thread.id() != own {
                thread.unpark();
            }
        }
    }
}

fn read_port(child: &mut Child) -> u16 {
    let mut text = String::new();
    let out = child.stdout.as_mut().expect("piped");
    let mut byte = [0];
    while out.read(&mut byte).expect("read") == 1 && byte[0] != b'\n' {
        text.push(char::from(byte[0]));
    }
    text.parse().expect("a port")
}

/// How long all threads of a process have run, nanoseconds.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    let run = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|it| it.parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.flatten().map(|task| run(task.path())).sum()
}
