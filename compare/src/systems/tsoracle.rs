//! The `tsoracle` server, through its own client, which merges callers that wait at the same time.

use std::rc::Rc;

use tsoracle_client::Client;

/// Clones share one connection.
#[derive(Clone)]
pub struct Caller(Rc<Client>);

impl Caller {
    pub async fn connect(addrs: &[&str]) -> anyhow::Result<Self> {
        let addrs = addrs.iter().map(|addr| format!("http://{addr}")).collect();
        Ok(Self(Rc::new(Client::connect(addrs).await?)))
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
