//! The metrics of clients' connections and of their TLS.

use std::fmt;
use std::time::UNIX_EPOCH;

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::Page;
use crate::metrics::ConnectionRefusal;
use crate::metrics::worker::Abuse;

impl Page<'_, '_> {
    pub(super) fn connections(&mut self) -> fmt::Result {
        let metrics = self.metrics;
        self.gauge(
            "connections_open",
            "Open client connections. Connections beyond CONNECTIONS_MAX are closed.",
            None,
            self.sum(|w| &w.connections) as f64,
        )?;
        self.gauge(
            "native_connections_open",
            "Open client connections that speak the native protocol. The others speak HTTP, or have \
             sent nothing.",
            None,
            self.sum(|w| &w.native_connections) as f64,
        )?;
        self.counter(
            "connections_accepted",
            "Client connections accepted.",
            metrics.connections_accepted.load(),
        )?;
        let refusals =
            ConnectionRefusal::ALL.map(|why| (why.name(), metrics.connections_refused(why)));
        self.counters(
            "connections_refused",
            "Client connections closed at once, by reason: all (CONNECTIONS_MAX), address \
             (ADDRESS_CONNECTIONS_MAX), descriptors (the remaining ones are kept for peers and \
             storage: raise ulimit -n), worker (full, or stopping).",
            "reason",
            &refusals,
        )?;
        self.counter(
            "connections_idle_closed",
            "Client connections closed because they were silent, or in the middle of a request, for \
             too long.",
            self.sum(|w| &w.connections_idle_closed),
        )?;
        let abuses = Abuse::ALL.map(|it| (it.name(), self.sum(|w| w.abuses(it))));
        self.counters(
            "http2_abuse",
            "HTTP/2 client connections closed because of too many frames that cost the client \
             little, by the kind of the last frame. calm: the client exceeded a limit of the \
             session. protocol: the client sent a frame that the protocol forbids.",
            "frames",
            &abuses,
        )?;
        self.gauge(
            "http3_connections_open",
            "Open client connections that speak HTTP/3. connections_open counts them, too.",
            None,
            self.sum(|w| &w.http3_connections) as f64,
        )?;
        self.counter(
            "http3_abusers_closed",
            "HTTP/3 client connections closed because the client cancelled too many requests, or \
             sent too much data beside requests.",
            self.sum(|w| &w.http3_abusers_closed),
        )?;
        self.counter(
            "quic_handshakes_failed",
            "QUIC handshakes that failed or took too long.",
            self.sum(|w| &w.quic_handshakes_failed),
        )?;
        self.counter(
            "quic_retries",
            "QUIC clients that had to prove their address first, because many handshakes were under \
             way or CONNECTIONS_MAX was reached.",
            self.sum(|w| &w.quic_retries),
        )?;
        self.counter(
            "quic_refusals",
            "QUIC clients that were refused, because CONNECTIONS_MAX was reached, too many \
             handshakes were under way, or the node was stopping.",
            self.sum(|w| &w.quic_refusals),
        )?;
        self.counter(
            "accept_failures",
            "Failed attempts to accept a connection of a client or a peer, because the system had no \
             descriptor or memory left: raise the descriptor limit (ulimit -n).",
            metrics.accept_failures.load(),
        )
    }

    pub(super) fn tls(&mut self) -> fmt::Result {
        let shared = self.shared;
        self.counters(
            "tls_handshakes",
            "TLS handshakes of clients, by outcome. A handshake also fails if it takes too long, or \
             if CLIENT_CA_FILE is set and the client has no certificate of these authorities.",
            "outcome",
            &[
                ("completed", self.sum(|w| &w.handshakes_completed)),
                ("failed", self.sum(|w| &w.handshakes_failed)),
            ],
        )?;
        self.counter(
            "plain_connections_refused",
            "Client connections closed because they do not use TLS, which CLIENT_TLS requires.",
            self.sum(|w| &w.plain_refused),
        )?;
        let expiries: Vec<_> = shared.certificates.expiries().collect();
        let mut family = self.describe(
            "certificate_expiry_timestamp",
            "When a certificate expires, Unix time, by the setting that names its file. For a \
             bundle, the certificate that expires first.",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        for (setting, at) in expiries {
            let labels = [("setting", setting)];
            let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            family.encode_family(&labels)?.encode_gauge(&at)?;
        }
        Ok(())
    }
}
