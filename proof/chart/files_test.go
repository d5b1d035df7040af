package chart

// The files that the secrets of a cluster have, made by the program or as cert-manager would.

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"

	"epicepoch/chart/render"
)

// certificates makes the files of all secrets: those of `epicepoch certs`, those of cert-manager, tokens, a backup.
func certificates(t *testing.T, host func(id int) string) string {
	t.Helper()
	files := t.TempDir()
	run := func(words ...string) {
		command := exec.Command(program(t), words...)
		if text, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", words, err, text)
		}
	}
	tls := filepath.Join(files, "tls")
	run("certs", "ca", "--out", tls)
	nodes := []string{"certs", "node", "--dir", tls, "--out", tls}
	for id := 1; id <= 7; id++ {
		nodes = append(nodes, fmt.Sprintf("%d=%s", id, host(id)))
	}
	run(nodes...)
	for _, right := range []string{"clients", "operators"} {
		write(t, filepath.Join(files, right, right), "0123456789abcdef0123456789abcdef\n")
	}
	return files
}

// issue writes the files that cert-manager would put into the secret of a certificate.
func issue(t *testing.T, files string, wanted certmanager.Certificate) {
	t.Helper()
	usages := wanted.Spec.Usages
	for _, usage := range []certmanager.KeyUsage{certmanager.UsageServerAuth, certmanager.UsageClientAuth} {
		if !slices.Contains(usages, usage) {
			t.Errorf("the certificate has no usage %s", usage)
		}
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: wanted.Spec.DNSNames,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	caKey, leafKey := key(t), key(t)
	sign := func(path string, made *x509.Certificate, of *ecdsa.PrivateKey) {
		bytes, err := x509.CreateCertificate(rand.Reader, made, ca, &of.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: bytes})))
	}
	sign(filepath.Join(files, "tls/ca.crt"), ca, caKey)
	sign(filepath.Join(files, "tls/tls.crt"), leaf, leafKey)
	bytes, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	block := &pem.Block{Type: "PRIVATE KEY", Bytes: bytes}
	write(t, filepath.Join(files, "tls/tls.key"), string(pem.EncodeToMemory(block)))
}

func key(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// backUp makes a backup of a cluster of one node, which ran for a moment.
func backUp(t *testing.T, files string) {
	t.Helper()
	node := exec.Command(program(t), "serve")
	data := filepath.Join(files, "single")
	node.Env = []string{
		"NODE_ID=1", "SINGLE=1", "BOOTSTRAP=1", "RAFT_ADDR=127.0.0.1:" + freePort(t), "HTTP_PORT=0", "HTTP3=off",
		"DATA_DIR=" + data,
	}
	log := filepath.Join(files, "single.log")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	node.Stdout, node.Stderr = file, file
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		text, _ := os.ReadFile(log)
		if bytes.Contains(text, []byte("this node leads")) {
			break
		}
		if time.Now().After(end) {
			_ = node.Process.Kill()
			t.Fatalf("no cluster of one node: %s", text)
		}
	}
	_ = node.Process.Signal(syscall.SIGTERM)
	_ = node.Wait()
	path := filepath.Join(files, "restore/epicepoch.backup")
	write(t, filepath.Join(files, "restore/note"), "")
	if text, err := exec.Command(program(t), "backup", "--data-dir", data, "--out", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// freePort is a port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// pod is the name of a pod.
func pod(id int) string { return fmt.Sprintf("epicepoch-%d.%s", id, render.Nodes) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
