//! etcd: every put gets a revision of its own, above all earlier ones. `n` timestamps would need
//! `n` puts, which users of etcd would not do. So `n` above 1 is refused.

use etcd_client::{Client, KvClient};

/// HTTP/2 connections shared by the callers, as in etcd's own benchmark.
const CONNECTIONS_MAX: u32 = 8;

/// A caller. Several callers share a connection.
pub struct Caller(KvClient);

impl Caller {
    pub async fn connect(addrs: &[&str], count: u32) -> anyhow::Result<Vec<Self>> {
        let mut clients = Vec::new();
        for _ in 0..count.min(CONNECTIONS_MAX) {
            clients.push(Client::connect(addrs, None).await?.kv_client());
        }
        let each = (0..count as usize).map(|at| Self(clients[at % clients.len()].clone()));
        Ok(each.collect())
    }

    pub async fn ask(&mut self, n: u32) -> anyhow::Result<u128> {
        anyhow::ensure!(n == 1, "a put gives one revision");
        let answer = self.0.put("timestamp", "", None).await?;
        let header =
            answer.header().ok_or_else(|| anyhow::anyhow!("an answer without a header"))?;
        Ok(u128::try_from(header.revision())?)
    }
}
