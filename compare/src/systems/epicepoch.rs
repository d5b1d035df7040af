//! This service, through its Rust client.

use std::time::{Duration, Instant};

use epicepoch_client::{Client, Options};

/// Clones share what they know, not the connection that a request is on.
#[derive(Clone)]
pub struct Caller(Client);

impl Caller {
    pub fn connect(addrs: &[&str]) -> anyhow::Result<Self> {
        Ok(Self(Client::new(addrs.iter().copied(), Options::default())?))
    }

    pub async fn ask(&mut self, n: u32) -> anyhow::Result<u128> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let range = self.0.timestamps(n.into(), deadline).await?;
        Ok(u128::from_be_bytes(range.first().to_bytes()))
    }
}
