//! A client's stream as hyper has it: it tells the connection's state what happens. Shared with the
//! task of the connection, which ends it when the protocol is through with it.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client_state::ClientState;
use crate::tls::socket::Socket;

/// See the module.
pub(super) struct ClientStream {
    stream: Rc<RefCell<Socket>>,
    /// What was read before, and comes first.
    unread: Vec<u8>,
    state: Rc<ClientState>,
}

impl ClientStream {
    /// What is read from it is `unread` first, which was read before.
    pub(super) const fn new(
        stream: Rc<RefCell<Socket>>,
        unread: Vec<u8>,
        state: Rc<ClientState>,
    ) -> Self {
        Self { stream, unread, state }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if !self.unread.is_empty() {
            let length = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread[..length]);
            self.unread.drain(..length);
            self.state.handle_read(&buffer.filled()[before..]);
            return Poll::Ready(Ok(()));
        }
        let result = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, buffer));
        match &result {
            Ok(()) => self.state.handle_read(&buffer.filled()[before..]),
            Err(_) => self.state.has_ended.set(true),
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes);
        if let Poll::Ready(Ok(_)) = written {
            self.state.handle_write();
        }
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(_)) = written {
            self.state.handle_write();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(context)
    }
}
