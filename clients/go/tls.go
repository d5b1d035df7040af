package epicepoch

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
)

// nativeALPN names the native protocol in the TLS handshake.
const nativeALPN = "epicepoch/1"

// tlsAlert is the first byte of a TLS server's answer to anything but TLS (RFC 8446, section 5.1).
const tlsAlert = 0x15

// needsTLS is the error of a plain connection to a port that speaks TLS.
const needsTLS = "this port speaks TLS; this client speaks plain text: set WithTLS"

// errNoTLS is the error of a TLS connection to a port that does not speak TLS.
var errNoTLS = errors.New("this port does not speak TLS: leave WithTLS out, or set CLIENT_TLS on the node")

// WithTLS uses TLS on every connection, also on those that the function of [WithDialer] makes. A
// node's certificate must be valid for the host that was dialled, unless config sets another
// ServerName. Set RootCAs to the cluster's authority (ca.pem); without it, the client trusts the
// authorities of the system. If the nodes ask for a client certificate (CLIENT_CA_FILE), set
// Certificates or GetClientCertificate. The config is copied, so later changes to it have no effect;
// use [WithTLSSource] to change authorities while the client runs. The client uses TLS 1.3 or newer,
// unless the config allows 1.2. If config is nil, [Dial] returns an error, because plain text could
// give away the token. Default: plain TCP.
func WithTLS(config *tls.Config) Option {
	if config == nil {
		return func(o *options) { o.lacksTLS = true }
	}
	own := config.Clone()
	return WithTLSSource(func() *tls.Config { return own })
}

// WithTLSSource calls a function for the config of [WithTLS] at each connection, so that roots and
// certificates can change. Do not change a config after the function has returned it. The function
// must return quickly. If it returns nil, no connection is made.
func WithTLSSource(source func() *tls.Config) Option {
	if source == nil {
		source = func() *tls.Config { return nil }
	}
	return func(o *options) { o.tls, o.lacksTLS = source, false }
}

// connect makes a connection, with TLS if configured.
func (o *options) connect(ctx context.Context, addr string) (net.Conn, error) {
	if o.tls == nil {
		return o.dial(ctx, addr)
	}
	given := o.tls()
	if given == nil {
		return nil, errors.New("epicepoch: the source of TLS gave none")
	}
	config := given.Clone()
	config.NextProtos = []string{nativeALPN}
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		config.ServerName = host
	}
	stream, err := o.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(stream, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		stream.Close()
		var foreign tls.RecordHeaderError
		if errors.As(err, &foreign) {
			return nil, errNoTLS
		}
		return nil, err
	}
	return secured, nil
}
