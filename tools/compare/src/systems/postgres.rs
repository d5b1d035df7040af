//! `PostgreSQL`: `nextval()` of a sequence, one prepared statement, a connection for each caller.

use tokio_postgres::{Client, NoTls, Statement};

/// A connection and its statements.
pub struct Caller {
    client: Client,
    one: Statement,
    many: Statement,
}

impl Caller {
    pub async fn connect(addr: &str) -> anyhow::Result<Self> {
        let (client, connection) = tokio_postgres::connect(addr, NoTls).await?;
        tokio::spawn(connection);
        let one = client.prepare("SELECT nextval('timestamp')").await?;
        let many = "SELECT min(t) FROM \
            (SELECT nextval('timestamp') AS t FROM generate_series(1, $1)) AS s";
        let many = client.prepare(many).await?;
        Ok(Self { client, one, many })
    }

    pub async fn ask(&mut self, n: u32) -> anyhow::Result<u128> {
        let row = if n == 1 {
            self.client.query_one(&self.one, &[]).await?
        } else {
            self.client.query_one(&self.many, &[&i32::try_from(n)?]).await?
        };
        Ok(u128::try_from(row.try_get::<_, i64>(0)?)?)
    }
}
