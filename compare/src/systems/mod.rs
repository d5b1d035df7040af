//! What can be asked, and how: one module a system. A caller's answer is one number that must
//! rise from answer to answer; what the number is, is the system's own.

mod epicepoch;
mod etcd;
mod postgres;
mod redis;
mod tsoracle;

use clap::ValueEnum;
use epicepoch_client::Via;

/// A system that can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// This service over HTTP/1.1, a connection for each caller.
    EpicepochHttp,
    /// This service over its native protocol, through one client that merges its callers.
    Epicepoch,
    /// The same, with a client for each caller.
    EpicepochEach,
    /// The revision of a put.
    Etcd,
    /// INCRBY.
    Redis,
    /// `nextval()` of a sequence.
    Postgres,
    /// The `tsoracle` server, through one client that merges its callers: it waits a millisecond
    /// for more of them, by default.
    Tsoracle,
    /// The same, without that wait.
    TsoracleAtOnce,
    /// Without that wait, with a client for each caller.
    TsoracleEach,
}

/// All callers of a run, connected.
pub struct Callers(Vec<Caller>);

/// One who asks and waits.
pub enum Caller {
    /// Of this service.
    Epicepoch(epicepoch::Caller),
    /// Of etcd.
    Etcd(Box<etcd::Caller>),
    /// Of Redis.
    Redis(redis::Caller),
    /// Of `PostgreSQL`.
    Postgres(postgres::Caller),
    /// Of tsoracle.
    Tsoracle(tsoracle::Caller),
}

impl System {
    /// Its name on the command line and in reports.
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
    /// The first that cannot connect.
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

    /// One by one.
    pub fn into_each(self) -> impl Iterator<Item = Caller> {
        self.0.into_iter()
    }
}

impl Caller {
    /// Asks for `n` timestamps; a number of the first that must be above every earlier answer.
    ///
    /// # Errors
    /// What the client library says.
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
