//! A client's stream as hyper sees it. The stream records reads and writes in the connection's
//! state. The connection's task also holds the stream, and closes it when hyper is done.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::front::deadlines::ClientState;
use crate::security::tls::socket::Socket;

/// A client's stream as hyper reads and writes it.
pub(crate) struct ClientStream {
    stream: Rc<RefCell<Socket>>,
    /// Bytes that were read before hyper took over. Hyper reads them first.
    unread: Vec<u8>,
    state: Rc<ClientState>,
}

impl ClientStream {
    /// A stream that yields `unread` first, then the bytes of the socket.
    pub(crate) const fn new(
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
