package epicepoch

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// signedByItself returns a self-signed certificate for loopback, and a pool that trusts it.
func signedByItself(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// startTLS starts a server that does TLS handshakes, up to the given version of TLS.
func startTLS(t *testing.T, pair tls.Certificate, newest uint16) (addr string) {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{nativeALPN},
		MaxVersion:   newest,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go conn.(*tls.Conn).Handshake()
		}
	}()
	return listener.Addr().String()
}

func TestTLS12IsUsedOnlyIfTheConfigAllowsIt(t *testing.T) {
	pair, trusted := signedByItself(t)
	for _, newest := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		addr := startTLS(t, pair, newest)
		for _, oldest := range []uint16{0, tls.VersionTLS12, tls.VersionTLS13} {
			o := defaults()
			WithTLS(&tls.Config{RootCAs: trusted, MinVersion: oldest})(&o)
			conn, err := o.connect(within(t, 10*time.Second), addr)
			if err == nil {
				conn.Close()
			}
			if want := newest == tls.VersionTLS13 || oldest == tls.VersionTLS12; (err == nil) != want {
				t.Errorf("the node speaks %x, the config allows %x: %v", newest, oldest, err)
			}
		}
	}
}

func TestAConfigOfTLSThatIsNilNeverMeansPlainText(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = source.serve
	client, err := Dial(within(t, 10*time.Second), []string{leader.addr()}, WithToken("secret"), WithTLS(nil))
	if err == nil {
		client.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "WithTLS is nil") || leader.met.Load() != 0 {
		t.Error(err, leader.met.Load(), "connections")
	}
	// The last option counts.
	for _, one := range []struct {
		opts     []Option
		lacksTLS bool
	}{
		{[]Option{WithTLS(nil), WithTLS(&tls.Config{})}, false},
		{[]Option{WithTLS(&tls.Config{}), WithTLS(nil)}, true},
	} {
		o := defaults()
		for _, opt := range one.opts {
			opt(&o)
		}
		if err := o.check(); (err != nil) != one.lacksTLS {
			t.Error(err, one.lacksTLS)
		}
	}
}

func TestEachConnectionTrustsWhomItsSourceNamesThen(t *testing.T) {
	pair, trusted := signedByItself(t)
	_, other := signedByItself(t)
	addr := startTLS(t, pair, tls.VersionTLS13)
	var current atomic.Pointer[tls.Config]
	o := defaults()
	WithTLSSource(current.Load)(&o)
	connect := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		conn, err := o.connect(ctx, addr)
		if err == nil {
			conn.Close()
		}
		return err
	}
	if connect() == nil {
		t.Error("connected without TLS")
	}
	for _, it := range []struct {
		pool *x509.CertPool
		ok   bool
	}{{other, false}, {trusted, true}, {other, false}} {
		config := &tls.Config{RootCAs: it.pool}
		current.Store(config)
		if err := connect(); (err == nil) != it.ok {
			t.Errorf("trusted %v: %v", it.ok, err)
		}
		if config.NextProtos != nil || config.ServerName != "" {
			t.Error("the source's own config was changed")
		}
	}
	// WithTLS copies the config. So a change after the call has no effect.
	config := &tls.Config{RootCAs: trusted}
	WithTLS(config)(&o)
	config.RootCAs = other
	if err := connect(); err != nil {
		t.Error(err)
	}
}
