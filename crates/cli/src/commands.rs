//! The command line: every command, argument and word of help. It decides nothing.

use std::ops::RangeInclusive;

use clap::{Arg, ArgAction, Command, value_parser};
use epicepoch_bench::run::config::{CONNECTIONS_MAX, COUNT_MAX, IN_FLIGHT_MAX, THREADS_MAX};
use epicepoch_wire::http::RANGE_COUNT_MAX;

use crate::settings::{Group, Kind, Setting, TABLE};
use crate::sources::CONFIG;
use crate::{
    backup, bench, certs, clock, cluster_settings, knee, leader, member, reports, rolling, tune,
};

/// The whole command line.
pub(crate) fn tree() -> Command {
    Command::new("epicepoch")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A timestamp oracle: unique, strictly increasing timestamps from a small cluster.")
        .long_about(ABOUT)
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(100)
        .disable_help_subcommand(true)
        .subcommands([serve(), dev(), get(), decode(), encode(), status()])
        .subcommands([
            member::command(),
            leader::command(),
            clock::command(),
            cluster_settings::command(),
            tune::command(),
            rolling::command(),
            backup::command(),
            certs::command(),
            probe(),
            bench(),
            sim(),
        ])
}

fn serve() -> Command {
    let config = Arg::new(CONFIG)
        .long("config")
        .value_name("FILE")
        .help_heading("File")
        .help("TOML file of settings [env: CONFIG]")
        .long_help(
            "TOML file of settings; its keys are the flags with '_' for '-'. `peers` may also be \
             a table of addresses by node id. An unknown key is refused.\n[env: CONFIG]",
        );
    let mut command = Command::new("serve").about("Run one node of a cluster").long_about(
        "Run one node of a cluster.\n\nEvery setting is a flag, an environment variable and a \
         key of the file; a flag beats a variable, which beats the file, which beats the default. \
         An empty variable is a bad value, not an unset one. EPOCH_INTERVAL_MS, RESERVATION_MS, \
         CLOCK_OFFSET_MAX_MS, MAX_N and LEADER_ZONES seed the settings of a new cluster; afterwards \
         \"epicepoch settings\" changes them, on all nodes at once. SIGTERM, \
         SIGINT and SIGHUP finish open requests, hand leadership over and exit with 0; another \
         one, more than a second later, exits at once.\n\nExit codes: 0 an orderly end; 1 it failed: \
         start it again; 2 a bad setting; 3 this node was removed from its cluster; 4 this data \
         directory was set back, is not that of its node id, or is of a history that has ended. After \
         2, 3 and 4 do not start it again as it is: the last line that it wrote says what to do.",
    );
    command = command.after_help(
        "First start of a cluster of three, on each node with its own id and address:\n  \
         epicepoch serve --node-id 1 --raft-addr n1:60001 --bootstrap \\\n    \
         --peers 1=n1:60001,2=n2:60001,3=n3:60001 \\\n    \
         --peer-cert-file node-1.pem --peer-key-file node-1.key --peer-ca-file ca.pem\n\
         (\"epicepoch certs\" makes the three; --peer-plain instead on a trusted network)\n\
         A node that joins a cluster, before \"epicepoch member add 4=n4:60001\":\n  \
         epicepoch serve --node-id 4 --raft-addr n4:60001 --join n1:60001 \\\n    \
         --peer-cert-file node-4.pem --peer-key-file node-4.key --peer-ca-file ca.pem\n\
         A new history of a cluster that is lost for good, on each first member:\n  \
         epicepoch serve --node-id 1 --raft-addr n1:60001 --bootstrap --restore epicepoch.backup \\\n    \
         --peers 1=n1:60001,2=n2:60001,3=n3:60001 \\\n    \
         --peer-cert-file node-1.pem --peer-key-file node-1.key --peer-ca-file ca.pem\n\
         A cluster of one:\n  \
         epicepoch serve --node-id 1 --raft-addr localhost:60001 --single --bootstrap",
    );
    with_settings(command, |_| true).arg(config)
}

fn dev() -> Command {
    let command = Command::new("dev")
        .about("Run a whole cluster in one process, for development")
        .long_about(
            "Run a whole cluster in one process on loopback, for development. It founds itself \
             on the first start and keeps its data; node 1 leads. Settings that each node has for \
             itself (such as NODE_ID, PEERS, CLUSTER and HTTP_PORT) are chosen here, whatever the \
             environment says; the rest are those of `epicepoch serve`, as flags or variables. \
             No file is read: CONFIG means nothing here.",
        )
        .after_help("Then:\n  curl -s localhost:8881/timestamp | xxd\n  epicepoch get -n 3")
        .arg(
            Arg::new("nodes")
                .long("nodes")
                .value_name("COUNT")
                .value_parser(value_parser!(u16).range(1..=9))
                .default_value("3")
                .help("Nodes of the cluster, 1 to 9"),
        )
        .arg(
            Arg::new("http-port-base")
                .long("http-port-base")
                .value_name("PORT")
                .value_parser(value_parser!(u16).range(1..))
                .default_value("8881")
                .help("Client port of node 1; node K has the K-th from there"),
        )
        .arg(
            Arg::new("raft-port-base")
                .long("raft-port-base")
                .value_name("PORT")
                .value_parser(value_parser!(u16).range(1..))
                .default_value("60001")
                .help("Raft port of node 1; node K has the K-th from there"),
        )
        .arg(
            Arg::new("data-dir")
                .long("data-dir")
                .value_name("DIR")
                .default_value("_raft/dev")
                .help("Where the nodes keep their data, in node-1, node-2 and so on"),
        );
    with_settings(command, |setting| !setting.group.is_per_node())
}

fn get() -> Command {
    Command::new("get")
        .about("Get timestamps from a cluster")
        .after_help(
            "Formats:\n  hex     one timestamp of 32 digits per line\n  json    one object per \
             line, with epoch, index and wall time\n  binary  16 bytes each, one after another\n  \
             range   first, last and count on one line, whatever the count\n\n\
             Examples:\n  epicepoch get\n  epicepoch get -n 1000 --format binary > keys\n  \
             epicepoch get --addr n1:8080,n2:8080,n3:8080 | xargs epicepoch decode",
        )
        .arg(
            Arg::new("count")
                .short('n')
                .long("count")
                .value_name("K")
                .value_parser(value_parser!(u64).range(1..=1 << 32))
                .default_value("1")
                .help("How many, 1 to 2^32; they share an epoch and have consecutive indexes"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("FORMAT")
                .value_parser(["hex", "json", "binary", "range"])
                .default_value("hex")
                .help("How to print them"),
        )
        .args(client_arguments())
}

fn decode() -> Command {
    Command::new("decode")
        .about("Show the epoch, index and wall time of timestamps")
        .after_help(
            "Examples:\n  epicepoch decode 17979cfe362a00000000000000000005\n  \
             epicepoch get -n 3 | epicepoch decode --json",
        )
        .arg(
            Arg::new("timestamp")
                .value_name("HEX")
                .num_args(0..)
                .help("Timestamps of 32 hexadecimal digits; none or '-' reads standard input"),
        )
        .arg(json())
}

fn encode() -> Command {
    Command::new("encode")
        .about("Show the lowest and the highest timestamp of a wall time")
        .after_help(
            "For a range query over keys: everything from the lowest timestamp of the first \
             moment to the highest of the last one.\n\n\
             Examples:\n  epicepoch encode 2023-11-14T22:13:20Z\n  \
             epicepoch encode 1700000000s --lowest\n  epicepoch encode now --json",
        )
        .arg(
            Arg::new("time")
                .value_name("TIME")
                .required(true)
                // A time before 1970 is refused in words about time, not about arguments.
                .allow_hyphen_values(true)
                .help(
                    "RFC 3339 with an offset; or Unix time with its unit, such as 1700000000s, \
                     1700000000000ms, ...us, ...ns; or now",
                ),
        )
        .arg(switch("lowest", "Print only the lowest timestamp").conflicts_with("highest"))
        .arg(switch("highest", "Print only the highest timestamp"))
        .arg(json().conflicts_with_all(["lowest", "highest"]))
}

fn status() -> Command {
    Command::new("status")
        .about("Show the members of a cluster; exits with 0 when a leader serves, else with 1")
        .args(client_arguments())
        .arg(json())
}

fn sim() -> Command {
    let number = |name: &'static str, value: &'static str, help: &'static str| {
        let parser = value_parser!(u64);
        Arg::new(name).long(name).value_name(value).value_parser(parser).help(help)
    };
    Command::new("sim")
        .about("Run whole clusters of the core in a simulator, under every fault at once")
        .long_about(
            "Run whole clusters of the core, each in one thread, with simulated links, disks, clocks, \
             processes and clients, under every fault at once, and check every step. Everything \
             of a run comes from its seed: the same seed gives the same run.",
        )
        .after_help(
            "Exit codes: 0 no violation, 3 an invariant was broken, 4 a healed cluster did not \
             answer, 5 code under test panicked.\n\n\
             Examples:\n  epicepoch sim --seeds 1000 --jobs 2\n  epicepoch sim --seed 7 --trace",
        )
        .arg(
            number("seeds", "N", "How many seeds [default: 100; 1 with --seed]")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(number("seed", "S", "The first seed [default: drawn, and printed]"))
        .arg(
            number("jobs", "K", "Threads, each with seeds of its own, 1 to 256 [default: 1]")
                .value_parser(value_parser!(u64).range(1..=256)),
        )
        .arg(number("seconds", "T", "Simulated seconds with faults, per seed [default: 60]"))
        .arg(
            number("nodes", "COUNT", "First voters, 1 to 7 [default: drawn per seed]")
                .value_parser(value_parser!(u64).range(1..=7)),
        )
        .arg(switch("trace", "Print everything that happens"))
        .arg(switch("real-storage", "Members' disks hold the database of production, in every run"))
        .arg(
            Arg::new("plant")
                .long("plant")
                .value_name("BUG")
                .hide(!cfg!(debug_assertions))
                .help("Plant a bug that the checkers must find (debug builds only)"),
        )
}

fn probe() -> Command {
    Command::new("probe")
        .about("Ask a cluster at a low rate, for ever, and tell at /metrics what clients see")
        .long_about(
            "Ask a cluster for timestamps at a low rate, for as long as it runs, and tell at \
             /metrics what clients see: latency, failures by kind, moves of the leader, the \
             longest silence, and answers that were wrong. SIGTERM ends it.",
        )
        .after_help(
            "Examples:\n  epicepoch probe --addr n1:8080,n2:8080,n3:8080\n  \
             curl -s localhost:9464/metrics\n\n\
             Exit codes: 0 it was stopped; 1 it could not start, or an answer was wrong; 2 wrong \
             usage.",
        )
        .args(client_arguments())
        .arg(text("rate", "R", "Requests per second, 0.1 to 1000").default_value("10"))
        .arg(number("count", 1..=COUNT_MAX, "Timestamps per request [default: 1]").short('n'))
        .arg(
            text("transport", "NAME", "How requests travel")
                .value_parser(["http1", "h2c", "http3", "native", "client"])
                .visible_alias("via")
                .default_value("http1"),
        )
        .arg(
            text("metrics-bind", "IP:PORT", "Where /metrics is served")
                .default_value("127.0.0.1:9464"),
        )
        .arg(switch("pretty", "Log for people instead of JSON"))
}

fn bench() -> Command {
    Command::new("bench")
        .about("Measure a cluster from outside, and what this machine can do at all")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands([bench_run(), bench_html(), bench_floor(), knee::command()])
        .subcommands(reports::commands())
}

fn bench_floor() -> Command {
    Command::new("floor")
        .about("Measure bare echoes over loopback, fsync, clock and thread wake-up")
        .arg(text("duration", "TIME", "How long for each figure").default_value("1s"))
        .arg(bench::floor_dir())
        .arg(switch("json", "Print JSON; times are nanoseconds"))
}

fn bench_html() -> Command {
    Command::new("html")
        .about("Draw reports as one page: percentile curves, latency and rate over time")
        .after_help(
            "Examples:\n  epicepoch bench html run.json --out run.html\n  \
             epicepoch bench html before.json after.json --out both.html",
        )
        .arg(
            Arg::new("report")
                .value_name("FILE")
                .required(true)
                .num_args(1..=2)
                .value_parser(value_parser!(std::path::PathBuf))
                .help("What bench run --json wrote; two of them are drawn over each other"),
        )
        .arg(
            text("out", "PAGE", "The page to write")
                .required(true)
                .value_parser(value_parser!(std::path::PathBuf)),
        )
}

fn bench_run() -> Command {
    let command = Command::new("run")
        .about("Put a cluster under load and report latency, rate, failures and order")
        .long_about(
            "Put a cluster under load and report latency, rate, failures and order.\n\nWithout \
             --rate it is a closed loop: each connection asks again when its answer has come. With \
             --rate it is an open loop: requests are due at fixed times, and latency counts from \
             then, so that a stall is felt by everybody who would have come meanwhile.",
        )
        .after_help(
            "Examples:\n  epicepoch bench run --rate 5000 --duration 60s\n  \
             epicepoch bench run --connections 256 --duration 10s\n  \
             epicepoch bench run --rate 1000 --slo p99=5ms,max=50ms,errors=0%\n\n\
             Exit codes: 0 done; 1 it failed, nothing was answered, or an answer was wrong; 2 wrong \
             usage;\n3 a promise of --slo was missed; 4 --slo has no verdict, because the \
             generator was the bottleneck.",
        );
    load_arguments(command, "1s", "10s")
        .arg(text("slo", "PROMISES", "Judge the run: p99=1ms,max=20ms,gap=1s,errors=0.1%"))
        .arg(text("json", "FILE", "Write everything as JSON; times are nanoseconds"))
        .arg(switch("spin", "Threads spin instead of sleeping: what is left is the service's time"))
        .arg(switch("floor", "Measure all of bench floor just before, and show multiples of it"))
        .arg(bench::floor_dir().requires("floor"))
        .arg(text("interval", "TIME", "Length of the report's intervals [default: 1s, or longer]"))
        .arg(text("commit", "TEXT", "Commit of what is measured, for the report and its history"))
        .arg(text("html", "FILE", "Write a page with curves, to be opened in a browser"))
        .arg(text("hlog", "FILE", "Write interval histograms for HdrHistogram's tools, in ns"))
        .arg(text("hgrm", "FILE", "Write the percentiles for HdrHistogram's tools, in ms"))
}

/// What every command has that puts a cluster under load.
pub(crate) fn load_arguments(
    command: Command,
    warmup: &'static str,
    duration: &'static str,
) -> Command {
    command
        .args(client_arguments())
        .arg(
            text("transport", "NAME", "How requests travel")
                .value_parser(["http1", "h2c", "http3", "native", "client"])
                .visible_alias("via")
                .default_value("http1"),
        )
        .arg(number("connections", 1..=CONNECTIONS_MAX as u64, "Connections in all [default: 8]"))
        .arg(number(
            "pipeline",
            1..=IN_FLIGHT_MAX as u64,
            "http1: requests open on one connection [default: 1]",
        ))
        .arg(number(
            "in-flight",
            1..=IN_FLIGHT_MAX as u64,
            "h2c, http3, native: requests open on one connection; client: callers of one [default: 1]",
        ))
        .arg(number("threads", 1..=THREADS_MAX as u64, "Threads that send [default: 1]"))
        .arg(number("count", 1..=RANGE_COUNT_MAX, "Timestamps per request [default: 1]").short('n'))
        .arg(switch("range", "Ask for format=range over HTTP: 24 bytes for any number of timestamps"))
        .arg(text("rate", "R", "Requests per second: an open loop"))
        .arg(
            text("arrivals", "HOW", "How the requests of --rate are spread")
                .value_parser(["constant", "poisson"])
                .default_value("constant")
                .requires("rate"),
        )
        .arg(text("warmup", "TIME", "Load before the measurement, or 0").default_value(warmup))
        .arg(text("duration", "TIME", "How long to measure").default_value(duration))
        .arg(
            text("verify", "WHETHER", "Check that what comes is unique and in real-time order")
                .value_parser(["on", "off"])
                .default_value("on"),
        )
        .arg(
            Arg::new("pid")
                .long("pid")
                .value_name("PID,...")
                .value_delimiter(',')
                .value_parser(value_parser!(u32).range(1..))
                .action(ArgAction::Append)
                .help("Local server processes whose CPU time to count"),
        )
}

pub(crate) fn text(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn number(name: &'static str, allowed: RangeInclusive<u64>, help: &'static str) -> Arg {
    text(name, "K", help).value_parser(value_parser!(u64).range(allowed))
}

pub(crate) fn client_arguments() -> [Arg; 6] {
    [
        Arg::new("addr")
            .long("addr")
            .value_name("HOST:PORT,...")
            .help("Client addresses of any members [env: EPICEPOCH_ADDRS]")
            .long_help(
                "Client addresses of any members; the leader is found from there. A port alone \
                 is on localhost.\n[env: EPICEPOCH_ADDRS]\n\
                 [default: localhost:8881,8882,8883,8080]",
            ),
        Arg::new("timeout")
            .long("timeout")
            .value_name("TIME")
            .default_value("5s")
            .help("When to give up, such as 5s or 500ms"),
        tls_file("ca-file", "Authorities of the nodes, as PEM: speaks TLS", "EPICEPOCH_CA_FILE"),
        tls_file("cert-file", "Certificate to show to nodes, as PEM", "EPICEPOCH_CERT_FILE"),
        tls_file("key-file", "Key of that certificate, as PEM", "EPICEPOCH_KEY_FILE"),
        Arg::new("token-file")
            .long("token-file")
            .value_name("FILE")
            .help("File whose first token is sent to nodes [env: EPICEPOCH_TOKEN_FILE]"),
    ]
}

fn tls_file(name: &'static str, help: &'static str, variable: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("FILE")
        .help(format!("{help} [env: {variable}]"))
        .help_heading("TLS")
}

pub(crate) fn json() -> Arg {
    switch("json", "Print JSON; 64-bit numbers are strings, because many readers round them")
}

pub(crate) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn with_settings(command: Command, wanted: fn(&Setting) -> bool) -> Command {
    let in_order = Group::ALL
        .into_iter()
        .flat_map(|group| TABLE.iter().filter(move |setting| setting.group == group));
    command.args(in_order.filter(|setting| wanted(setting)).map(argument))
}

fn argument(setting: &'static Setting) -> Arg {
    let Setting { name, group, value, default, help, kind } = setting;
    let argument = Arg::new(*name)
        .long(setting.flag())
        .value_name(*value)
        .help_heading(group.heading())
        .allow_negative_numbers(true)
        .help(format!("{help} [default: {default}]"))
        .long_help(format!("{help}\n[env: {name}] [default: {default}]\n[{}]", setting.allowed()));
    match kind {
        Kind::Switch(_) => argument.num_args(0..=1).require_equals(true).default_missing_value("1"),
        Kind::Number(..) | Kind::Text { .. } => argument,
    }
}

const ABOUT: &str = "\
A timestamp oracle: unique, strictly increasing timestamps from a small cluster.

A timestamp is 16 bytes: Unix time in nanoseconds (the epoch), then an index inside it, both
big-endian, so that byte order is time order. The cluster replicates itself with Raft and goes on
through the loss of any minority of its nodes.";

const EXAMPLES: &str = "\
Try it:
  epicepoch dev                                a cluster of three on this machine
  curl -s localhost:8881/timestamp | xxd       a timestamp
  epicepoch get -n 3 | epicepoch decode        three, with their wall time
  epicepoch status                             who leads
  epicepoch member list                        who belongs to it, and how far each is
  epicepoch leader transfer                    let another node lead
  epicepoch settings list                      what all nodes are set to
  epicepoch backup --out epicepoch.backup      what a restore needs, as a small file
  epicepoch certs --help                       certificates, for TLS
  epicepoch bench run --rate 1000              how fast it is
  epicepoch probe                              what clients see, for a monitoring system

Exit codes: 0 done, 1 failed while running, 2 wrong usage or configuration.";

#[cfg(test)]
mod tests {
    use super::*;

    fn help_of(command: &str) -> String {
        let mut tree = tree();
        let found = tree.find_subcommand_mut(command).expect("a command");
        found.render_long_help().to_string()
    }

    #[test]
    fn the_command_line_is_consistent() {
        tree().debug_assert();
    }

    #[test]
    fn the_help_of_serve_teaches_every_setting() {
        let help = help_of("serve");
        for setting in TABLE {
            let flag = format!("--{}", setting.flag());
            for part in [flag.as_str(), &format!("[env: {}]", setting.name)] {
                assert!(help.contains(part), "{part} in\n{help}");
            }
        }
        for group in Group::ALL {
            assert!(help.contains(group.heading()), "{}", group.heading());
        }
    }

    #[test]
    fn dev_offers_no_setting_that_each_node_has_for_itself() {
        let help = help_of("dev");
        assert!(help.contains("--epoch-interval-ms"));
        assert!(!help.contains("--node-id") && !help.contains("--peers"), "{help}");
    }

    #[test]
    fn the_first_help_shows_every_command_and_examples() {
        let help = tree().render_long_help().to_string();
        for word in [
            "serve",
            "dev",
            "get",
            "decode",
            "encode",
            "status",
            "member",
            "leader",
            "clock",
            "backup",
            "certs",
            "probe",
            "bench",
            "sim",
            "curl",
            "Exit codes",
        ] {
            assert!(help.contains(word), "{word} in\n{help}");
        }
    }
}
