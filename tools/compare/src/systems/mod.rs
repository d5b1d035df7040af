//! The systems, one module each. An answer is a number that must rise from answer to answer.

mod epicepoch;
mod etcd;
mod postgres;
mod redis;
mod tsoracle;

use clap::ValueEnum;
use epicepoch_client::Via;

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// EpicEpoch over HTTP/1.1, a connection for each caller.
    EpicepochHttp,
    /// EpicEpoch over its native protocol, one client that merges its callers.
    Epicepoch,
    /// EpicEpoch over its native protocol, a client for each caller.
    EpicepochEach,
    /// The revision of a put.
    Etcd,
    /// Redis' INCRBY.
    Redis,
    /// `nextval()` of a sequence.
    Postgres,
    /// The `tsoracle` server, and one client that merges its callers. By default that client waits
    /// a millisecond for more callers.
    Tsoracle,
    /// The `tsoracle` server, and one client that merges its callers without waiting for more of
    /// them.
    TsoracleAtOnce,
    /// The `tsoracle` server, and a client for each caller that does not wait for others.
    TsoracleEach,
}

/// All callers of a run, connected.
pub struct Callers(Vec<Caller>);

/// A caller.
pub enum Caller {
    /// EpicEpoch.
    Epicepoch(epicepoch::Caller),
    /// etcd.
    Etcd(Box<etcd::Caller>),
    /// Redis.
    Redis(redis::Caller),
    /// `PostgreSQL`.
    Postgres(postgres::Caller),
    /// tsoracle.
    Tsoracle(tsoracle::Caller),
}

impl System {
    /// The system's name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::EpicepochHttp => "epicepoch-http",
            Self::Epicepoch => "epicepoch",
            Self::EpicepochEach => "epicepoch-each",
            Self::Etcd => "etcd",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Tsoracle => "tsoracle",
            Self::TsoracleAtOnce => "tsoracle-at-once",
            Self::TsoracleEach => "tsoracle-each",
        }
    }
}

impl Callers {
    /// Connects `count` callers.
    ///
    /// # Errors
    /// The first caller cannot connect.
    pub async fn connect(system: System, addr: &str, count: u32) -> anyhow::Result<Self> {
        let addrs: Vec<&str> = addr.split(',').map(str::trim).collect();
        let mut callers = Vec::new();
        match system {
            System::EpicepochHttp => {
                let client = epicepoch::Caller::connect(&addrs, Via::Http)?;
                callers.resize_with(count as usize, || Caller::Epicepoch(client.clone()));
            }
            System::Epicepoch => {
                let client = epicepoch::Caller::connect(&addrs, Via::Native)?;
                callers.resize_with(count as usize, || Caller::Epicepoch(client.clone()));
            }
            System::EpicepochEach => {
                for _ in 0..count {
                    let client = epicepoch::Caller::connect(&addrs, Via::Native)?;
                    callers.push(Caller::Epicepoch(client));
                }
            }
            System::Etcd => {
                for caller in etcd::Caller::connect(&addrs, count).await? {
                    callers.push(Caller::Etcd(Box::new(caller)));
                }
            }
            System::Redis => {
                for _ in 0..count {
                    callers.push(Caller::Redis(redis::Caller::connect(addrs[0]).await?));
                }
            }
            System::Postgres => {
                for _ in 0..count {
                    callers.push(Caller::Postgres(postgres::Caller::connect(addr).await?));
                }
            }
            System::Tsoracle | System::TsoracleAtOnce => {
                let gathers = system == System::Tsoracle;
                let client = tsoracle::Caller::connect(&addrs, gathers).await?;
                callers.resize_with(count as usize, || Caller::Tsoracle(client.clone()));
            }
            System::TsoracleEach => {
                for _ in 0..count {
                    let client = tsoracle::Caller::connect(&addrs, false).await?;
                    callers.push(Caller::Tsoracle(client));
                }
            }
        }
        Ok(Self(callers))
    }

    /// The callers one by one.
    pub fn into_each(self) -> impl Iterator<Item = Caller> {
        self.0.into_iter()
    }
}

impl Caller {
    /// Requests `n` timestamps. Returns a number for the first one, which must be above every
    /// earlier answer.
    ///
    /// # Errors
    /// The error of the client library.
    pub async fn ask(&mut self, n: u32) -> anyhow::Result<u128> {
        match self {
            Self::Epicepoch(caller) => caller.ask(n).await,
            Self::Etcd(caller) => caller.ask(n).await,
            Self::Redis(caller) => caller.ask(n).await,
            Self::Postgres(caller) => caller.ask(n).await,
            Self::Tsoracle(caller) => caller.ask(n).await,
        }
    }
}
