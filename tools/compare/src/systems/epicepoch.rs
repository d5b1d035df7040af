//! This service, through its Rust client.

use epicepoch_client::{Client, Options, Via};

/// A caller. Clones share the cluster's state and, over the native protocol, their requests.
#[derive(Clone)]
pub struct Caller(Client);

impl Caller {
    pub fn connect(addrs: &[&str], via: Via) -> anyhow::Result<Self> {
        let mut options = Options::default();
        options.via = via;
        Ok(Self(Client::new(addrs.iter().copied(), options)?))
    }

    pub async fn ask(&mut self, n: u32) -> anyhow::Result<u128> {
        let range = self.0.timestamps(n.into()).await?;
        Ok(u128::from_be_bytes(range.first().to_bytes()))
    }
}
