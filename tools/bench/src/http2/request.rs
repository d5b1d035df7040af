//! The header block of the request. It uses the server's HPACK table, so a repeated request has
//! only a few bytes to write and to read. The measurement then shows the cost of a request without
//! the cost of decoding long headers.

use epicepoch_wire::http2::hpack::{
    ENTRY_OVERHEAD, INDEXED, KEPT, NEWEST, SIZE_UPDATE, TABLE_LEN_MAX, put_string,
};

/// The header block of a `GET` that is repeated on one connection.
#[derive(Debug)]
pub struct Request {
    /// The first request: headers that the server's static table lacks are added to its dynamic
    /// table.
    first: Vec<u8>,
    /// The request without entries of the server's dynamic table.
    plain: Vec<u8>,
    /// Later requests, which name entries of the server's dynamic table.
    again: Vec<u8>,
    /// Bytes that the request's headers take in the server's dynamic table.
    table_len: usize,
    state: Table,
}

/// State of the server's dynamic table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Empty,
    Filled,
    /// The server has lowered its limit. The next block announces that the table is not used any
    /// more.
    Revoked,
    Unused,
}

impl Request {
    /// Makes the request for a path and an authority, with the header `authorization` if a value is
    /// given.
    #[must_use]
    pub fn new(path: &str, authority: &str, authorization: Option<&str>) -> Self {
        let mut fields = vec![(PATH, ":path", path), (AUTHORITY, ":authority", authority)];
        fields.extend(authorization.map(|value| (AUTHORIZATION, "authorization", value)));
        let block = |literal: u8, prefix: u8| {
            let mut block = vec![METHOD_GET, SCHEME_HTTP];
            for (index, _, value) in &fields {
                let most = (1 << prefix) - 1;
                block.push(literal | *index.min(&most));
                if *index >= most {
                    block.push(index - most);
                }
                put_string(&mut block, value.as_bytes());
            }
            block
        };
        let mut again = vec![METHOD_GET, SCHEME_HTTP];
        again.extend((0..fields.len() as u8).rev().map(|older| NEWEST + older));
        let lens = fields.iter().map(|(_, name, value)| name.len() + value.len() + ENTRY_OVERHEAD);
        let table_len = lens.sum();
        Self { first: block(KEPT, 6), plain: block(0, 4), again, table_len, state: Table::Empty }
    }

    /// Records that the server limits its table to `len` bytes. Until then the limit is 4096.
    pub fn limit_table(&mut self, len: usize) {
        if len < TABLE_LEN_MAX && self.state != Table::Unused {
            self.state = Table::Revoked;
        }
    }

    /// Appends the header block of the next request.
    pub fn put(&mut self, out: &mut Vec<u8>) {
        match self.state {
            Table::Filled => out.extend_from_slice(&self.again),
            Table::Empty if self.table_len <= TABLE_LEN_MAX => {
                out.extend_from_slice(&self.first);
                self.state = Table::Filled;
            }
            Table::Empty | Table::Unused => out.extend_from_slice(&self.plain),
            Table::Revoked => {
                // An encoder announces a smaller limit in the next block (RFC 7541, 4.2).
                out.push(SIZE_UPDATE);
                out.extend_from_slice(&self.plain);
                self.state = Table::Unused;
            }
        }
    }

    /// Length of the next block, bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        match self.state {
            Table::Filled => self.again.len(),
            Table::Empty if self.table_len <= TABLE_LEN_MAX => self.first.len(),
            Table::Empty | Table::Unused => self.plain.len(),
            Table::Revoked => 1 + self.plain.len(),
        }
    }
}

/// Indexes in the static table of HPACK.
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const AUTHORIZATION: u8 = 23;
const METHOD_GET: u8 = INDEXED | 2;
const SCHEME_HTTP: u8 = INDEXED | 6;

#[cfg(test)]
mod tests {
    use epicepoch_wire::http2::hpack::{Decoder, HpackError};

    use super::*;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, HpackError> {
        let mut list = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        decoder.decode(block, |name, value| list.push((text(name), text(value))))?;
        Ok(list)
    }

    #[test]
    fn a_request_is_four_bytes_once_the_peer_knows_it() {
        let mut request = Request::new("/timestamp?n=10", &"h".repeat(200), None);
        let mut decoder = Decoder::default();
        let mut lists = Vec::new();
        let mut lens = Vec::new();
        for turn in 0..6 {
            // The server lowers its limit after the third request, so the next block must begin
            // with a size update.
            if turn == 3 {
                request.limit_table(100);
                request.limit_table(0);
            }
            let mut block = Vec::new();
            let announced = request.len();
            request.put(&mut block);
            assert_eq!(block.len(), announced);
            lens.push(block.len());
            lists.push(decode(&mut decoder, &block).unwrap());
        }
        assert_eq!(lists[0].len(), 4);
        assert_eq!(lists[0][2], (":path".into(), "/timestamp?n=10".into()));
        assert_eq!(lists[0][3], (":authority".into(), "h".repeat(200)));
        assert!(lists.iter().all(|list| *list == lists[0]));
        let long = lens[0];
        assert_eq!(lens, [long, 4, 4, long + 1, long, long]);
        assert_eq!(decoder.table_len(), 0);
    }

    #[test]
    fn a_token_is_in_every_request_and_takes_a_byte_of_all_but_the_first() {
        let mut decoder = Decoder::default();
        for table in [TABLE_LEN_MAX, 0] {
            let mut request = Request::new("/timestamp", "n:1", Some("Bearer 0123456789abcdef"));
            if table == 0 {
                request.limit_table(table);
            }
            let mut lens = Vec::new();
            for _ in 0..3 {
                let mut block = Vec::new();
                let announced = request.len();
                request.put(&mut block);
                assert_eq!(block.len(), announced);
                let list = decode(&mut decoder, &block).unwrap();
                let token = ("authorization".into(), "Bearer 0123456789abcdef".into());
                assert_eq!((list.len(), &list[4]), (5, &token));
                assert_eq!(list[2], (":path".into(), "/timestamp".into()));
                lens.push(block.len());
            }
            assert_eq!(lens[2] == 5, table > 0, "{lens:?}");
        }
    }
}
