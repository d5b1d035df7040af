// Program http3 asks a cluster for timestamps over HTTP/3 with quic-go, a client of another project.
// It reports whether that client gets what the contract promises.
//
//	http3 CA-FILE HOST:PORT [HOST:PORT]...
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/quic-go/quic-go/http3"
)

const (
	callers = 64
	calls   = 50
	length  = 16
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "http3:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: http3 CA-FILE HOST:PORT [HOST:PORT]...")
	}
	pem, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return errors.New("no certificate in " + args[0])
	}
	transport := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.Close()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	leader := ""
	for _, addr := range args[1:] {
		status, header, _, err := get(client, addr, "/timestamp")
		switch {
		case err != nil:
			return err
		case status == http.StatusOK:
			leader = addr
		case status != http.StatusConflict || header.Get("epicepoch-leader") == "":
			return fmt.Errorf("%s says %d and names no leader", addr, status)
		}
	}
	if leader == "" {
		return errors.New("nobody leads")
	}
	if err := many(client, leader); err != nil {
		return err
	}
	if _, _, body, err := get(client, leader, "/timestamp?n=65536"); err != nil || len(body) != 65536*length {
		return fmt.Errorf("65536 timestamps: %d bytes, %w", len(body), err)
	}
	status, header, _, err := get(client, leader, "/timestamp?n=0")
	if err != nil || status != http.StatusBadRequest || header.Get("epicepoch-error") != "BAD_COUNT" {
		return fmt.Errorf("a bad count: %d %v %w", status, header, err)
	}
	fmt.Printf("quic-go: %d timestamps, one order\n", callers*calls)
	return nil
}

// many lets several callers ask at once. It checks that the timestamps of each caller rise, and
// that no timestamp is given twice.
func many(client *http.Client, addr string) error {
	var group sync.WaitGroup
	got := make([][][]byte, callers)
	failed := make([]error, callers)
	for caller := range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			for range calls {
				status, _, body, err := get(client, addr, "/timestamp")
				if err != nil || status != http.StatusOK || len(body) != length {
					failed[caller] = fmt.Errorf("status %d, %d bytes, %w", status, len(body), err)
					return
				}
				last := len(got[caller]) - 1
				if last >= 0 && bytes.Compare(got[caller][last], body) >= 0 {
					failed[caller] = fmt.Errorf("%x came after %x", body, got[caller][last])
					return
				}
				got[caller] = append(got[caller], body)
			}
		}()
	}
	group.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	var all [][]byte
	for _, own := range got {
		all = append(all, own...)
	}
	sort.Slice(all, func(a, b int) bool { return bytes.Compare(all[a], all[b]) < 0 })
	for i := 1; i < len(all); i++ {
		if bytes.Equal(all[i-1], all[i]) {
			return fmt.Errorf("%x came twice", all[i])
		}
	}
	return nil
}

func get(client *http.Client, addr, path string) (int, http.Header, []byte, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+addr+path, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer answer.Body.Close()
	if answer.ProtoMajor != 3 {
		return 0, nil, nil, fmt.Errorf("%s is not HTTP/3", answer.Proto)
	}
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header, body, err
}
