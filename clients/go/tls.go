package epicepoch

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
)

// nativeALPN names the native protocol in the handshake.
const nativeALPN = "epicepoch/1"

// WithTLS speaks TLS to the nodes, over whatever [WithDialer] connects. A node's certificate must hold for the
// host by which it is dialled, unless config names another one. Set RootCAs to the cluster's authority (ca.pem),
// and Certificates, or GetClientCertificate, where the nodes ask for one (CLIENT_CA_FILE). The config is copied, so
// what it holds stays what it is; for authorities that change under a running client there is [WithTLSSource]. At
// least TLS 1.3 is spoken, unless it asks for 1.2. Default: plain TCP.
func WithTLS(config *tls.Config) Option {
	if config == nil {
		return func(o *options) { o.tls = nil }
	}
	own := config.Clone()
	return WithTLSSource(func() *tls.Config { return own })
}

// WithTLSSource asks for the config of [WithTLS] whenever a connection begins, so that whom the client trusts, and
// what it shows, can change under a running client. Nothing in a config changes after it was returned. It must
// return quickly, and never nil: then nothing is connected, nor without a source.
func WithTLSSource(source func() *tls.Config) Option {
	if source == nil {
		source = func() *tls.Config { return nil }
	}
	return func(o *options) { o.tls = source }
}

// connect makes a connection, behind TLS where that is asked for.
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
		return nil, err
	}
	return secured, nil
}
