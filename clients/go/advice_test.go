package epicepoch

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// refusal returns the error of a client that cannot use the node at this address.
func refusal(t *testing.T, addr string, opts ...Option) error {
	t.Helper()
	ctx, hook := untilItFails(t)
	client, err := Dial(ctx, []string{addr}, append(opts, WithAttemptTimeout(10*time.Second), hook)...)
	if err == nil {
		client.Close()
		t.Fatal("it was let in")
	}
	return err
}

func TestAMissingTokenIsSaid(t *testing.T) {
	leader := startNode(t, 1)
	leader.onHello = func() *welcome {
		leader.refuseHello(18, "invalid token")
		return nil
	}
	err := refusal(t, leader.addr())
	if text := err.Error(); !errors.Is(err, ErrUnauthorized) || !strings.Contains(text, "missing token: set WithToken") {
		t.Error(err)
	}
	// About a token that was sent, the node knows more than the client.
	err = refusal(t, leader.addr(), WithToken("wrong"))
	if text := err.Error(); strings.Contains(text, "missing") || !strings.Contains(text, "invalid token") {
		t.Error(err)
	}
}

// respond starts a server that reads something and sends these bytes.
func respond(t *testing.T, with string) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer stream.Close()
				stream.Read(make([]byte, 2048))
				stream.Write([]byte(with))
			}()
		}
	}()
	return listener.Addr().String()
}

func TestAPortThatSpeaksTLSIsCalledThat(t *testing.T) {
	// A TLS server, such as a proxy in front of the node, answers plain text with an alert.
	err := refusal(t, respond(t, "\x15\x03\x01\x00\x02\x02\x46"))
	if text := err.Error(); !errors.Is(err, ErrProtocol) || !strings.Contains(text, needsTLS) {
		t.Error(err)
	}
}

func TestAPortThatDoesNotSpeakTLSIsCalledThat(t *testing.T) {
	// A node without TLS answers the beginning of a TLS handshake like this.
	err := refusal(t, respond(t, "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"), WithTLS(&tls.Config{}))
	if !errors.Is(err, context.Canceled) || !errors.Is(err, errNoTLS) {
		t.Error(err)
	}
}

func TestAdviceIsGivenOnlyWhereItHelps(t *testing.T) {
	for _, one := range []struct {
		code   Code
		token  string
		isTLS  bool
		advice string
	}{
		{18, "", false, "set WithToken"},
		{18, "wrong", false, ""},
		{7, "", false, "set WithTLS"},
		{7, "", true, ""},
		{2, "", false, ""},
	} {
		o := defaults()
		if one.isTLS {
			WithTLS(&tls.Config{})(&o)
		}
		const said = "what the node says"
		err := o.advise(&Error{Code: one.code, Text: said}, one.token)
		text := err.(*Error).Text
		if one.advice == "" && text != said || !strings.Contains(text, one.advice) || !strings.Contains(text, said) {
			t.Errorf("%+v: %q", one, text)
		}
	}
}
