//! Redis: INCRBY of one key, a connection for each caller.

use ::redis::AsyncCommands as _;
use ::redis::aio::MultiplexedConnection;

/// A connection.
pub struct Caller(MultiplexedConnection);

impl Caller {
    pub async fn connect(addr: &str) -> anyhow::Result<Self> {
        let client = ::redis::Client::open(format!("redis://{addr}/"))?;
        Ok(Self(client.get_multiplexed_async_connection().await?))
    }

    pub async fn ask(&mut self, n: u32) -> anyhow::Result<u128> {
        let last: i64 = self.0.incr("timestamp", n).await?;
        Ok(u128::try_from(last - i64::from(n) + 1)?)
    }
}
