package epicepoch

import (
	"context"
	"crypto/tls"
	"net"
)

// nativeALPN names the native protocol in the handshake.
const nativeALPN = "epicepoch/1"

// WithTLS speaks TLS to the nodes, over whatever [WithDialer] connects. A node's certificate must hold for the
// host by which it is dialled, unless config names another one. Set RootCAs to the cluster's authority (ca.pem),
// and Certificates, or GetClientCertificate, where the nodes ask for one (CLIENT_CA_FILE). The config is copied;
// at least TLS 1.3 is spoken, unless it asks for 1.2. Default: plain TCP.
func WithTLS(config *tls.Config) Option {
	return func(o *options) {
		if config == nil {
			o.tls = nil
			return
		}
		own := config.Clone()
		own.NextProtos = []string{nativeALPN}
		if own.MinVersion == 0 {
			own.MinVersion = tls.VersionTLS13
		}
		o.tls = own
	}
}

// connect makes a connection, behind TLS where that is asked for.
func (o *options) connect(ctx context.Context, addr string) (net.Conn, error) {
	stream, err := o.dial(ctx, addr)
	if err != nil || o.tls == nil {
		return stream, err
	}
	config := o.tls
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			stream.Close()
			return nil, err
		}
		config = config.Clone()
		config.ServerName = host
	}
	secured := tls.Client(stream, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		stream.Close()
		return nil, err
	}
	return secured, nil
}
