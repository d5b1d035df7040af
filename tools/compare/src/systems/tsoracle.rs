//! The `tsoracle` server, through its own client, which merges waiting callers.

use std::rc::Rc;
use std::time::Duration;

use tsoracle_client::{Client, ClientBuilder};

/// A caller. Clones share one connection.
#[derive(Clone)]
pub struct Caller(Rc<Client>);

impl Caller {
    /// Connects. With `gathers`, the client waits a millisecond for more callers, which is its
    /// default.
    pub async fn connect(addrs: &[&str], gathers: bool) -> anyhow::Result<Self> {
        let addrs = addrs.iter().map(|addr| format!("http://{addr}")).collect();
        let mut builder = ClientBuilder::endpoints(addrs);
        if !gathers {
            builder = builder.batch_flush_interval(Duration::ZERO);
        }
        Ok(Self(Rc::new(builder.build().await?)))
    }

    pub async fn ask(&mut self, n: u32) -> anyhow::Result<u128> {
        if n == 1 {
            return Ok(u128::from(self.0.get_ts().await?.0));
        }
        let all = self.0.get_ts_batch(n).await?;
        let first = all.first().ok_or_else(|| anyhow::anyhow!("an empty answer"))?;
        Ok(u128::from(first.0))
    }
}
