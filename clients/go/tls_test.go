package epicepoch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificates lets the binary make an authority, and certificates for a node and a client, in a
// new directory.
func certificates(t *testing.T, bin string) string {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"certs", "ca", "--dir", dir},
		{"certs", "node", "--dir", dir, "1=127.0.0.1"},
		{"certs", "client", "--dir", dir, "app"},
	} {
		if said, err := exec.Command(bin, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, said)
		}
	}
	return dir
}

// trusting returns a config that trusts the authority whose certificate is in dir. If shows is
// true, the config also has the client's certificate.
func trusting(t *testing.T, dir string, shows bool) *tls.Config {
	t.Helper()
	bundle, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(bundle) {
		t.Fatal("no authority")
	}
	if shows {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client-app.pem"), filepath.Join(dir, "client-app.key"))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func TestASecuredNodeServesItsOwnClientsAlone(t *testing.T) {
	bin, err := oracleBinary()
	if err != nil {
		t.Fatal(err)
	}
	dir, foreign := certificates(t, bin), certificates(t, bin)
	addr, raft := freeAddress(t), freeAddress(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	node := exec.Command(bin, "serve", "--single", "--bootstrap", "--node-id", "1", "--raft-addr", raft,
		"--http-port", port, "--data-dir", filepath.Join(t.TempDir(), "data"), "--client-tls", "on",
		"--cert-file", filepath.Join(dir, "node-1.pem"), "--key-file", filepath.Join(dir, "node-1.key"),
		"--client-ca-file", filepath.Join(dir, "ca.pem"))
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		node.Process.Kill()
		node.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client, err := Dial(ctx, []string{addr}, WithTLS(trusting(t, dir, true)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	last := Timestamp{}
	for range 100 {
		timestamp, err := client.Timestamp(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if timestamp.Compare(last) <= 0 {
			t.Fatalf("%v came after %v", timestamp, last)
		}
		last = timestamp
	}
	// The client certificate was signed by another authority with the same name, so its signature is
	// wrong.
	mixed := trusting(t, dir, false)
	mixed.Certificates = trusting(t, foreign, true).Certificates
	elsewhere := trusting(t, dir, true)
	elsewhere.ServerName = "elsewhere.example"
	for name, it := range map[string]struct {
		opts []Option
		why  string
	}{
		"plain":                       {nil, "this port speaks TLS"},
		"plain, with advice":          {nil, "set WithTLS"},
		"no certificate":              {[]Option{WithTLS(trusting(t, dir, false))}, "certificate required"},
		"a certificate of a stranger": {[]Option{WithTLS(mixed)}, "remote error: tls: error decrypting"},
		"another authority":           {[]Option{WithTLS(trusting(t, foreign, true))}, "unknown authority"},
		"another name":                {[]Option{WithTLS(elsewhere)}, "elsewhere.example"},
	} {
		brief, cancel := context.WithTimeout(ctx, 2*time.Second)
		refused, err := Dial(brief, []string{addr}, it.opts...)
		cancel()
		switch {
		case err == nil:
			refused.Close()
			t.Errorf("%s: it was let in", name)
		case !strings.Contains(err.Error(), it.why):
			t.Errorf("%s: refused for another reason than %q: %v", name, it.why, err)
		}
	}
	// The node has refused those clients, and must still answer this one.
	if _, err := client.Timestamp(ctx); err != nil {
		t.Error(err)
	}
}
