package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
)

// request is any request to a store. Op decides which fields are used (src/protocol.rs).
type request struct {
	Op      string               `json:"op"`
	Row     string               `json:"row,omitempty"`
	At      *epicepoch.Timestamp `json:"at,omitempty"`
	Start   *epicepoch.Timestamp `json:"start,omitempty"`
	Commit  *epicepoch.Timestamp `json:"commit,omitempty"`
	Value   int64                `json:"value"`
	Primary string               `json:"primary,omitempty"`
	TTL     int64                `json:"ttl_ms,omitempty"`
}

// reply is any reply of a store. Is decides which fields are used.
type reply struct {
	Is      string              `json:"is"`
	Commit  epicepoch.Timestamp `json:"commit"`
	Start   epicepoch.Timestamp `json:"start"`
	Value   int64               `json:"value"`
	Primary string              `json:"primary"`
	Why     string              `json:"why"`
}

// stores are one goroutine's connections.
type stores []*store

type store struct {
	conn  net.Conn
	lines *bufio.Reader
}

func connect(addrs []string) (stores, error) {
	var all stores
	for _, addr := range addrs {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		all = append(all, &store{conn: conn, lines: bufio.NewReader(conn)})
	}
	return all, nil
}

// call sends a request to the store of the request's row, and returns the reply.
func (s stores) call(ask request) (reply, error) {
	at := storeOf(ask.Row, len(s))
	line, err := json.Marshal(ask)
	if err != nil {
		return reply{}, err
	}
	if _, err := s[at].conn.Write(append(line, '\n')); err != nil {
		return reply{}, err
	}
	if line, err = s[at].lines.ReadBytes('\n'); err != nil {
		return reply{}, err
	}
	var answer reply
	if err := json.Unmarshal(line, &answer); err != nil {
		return reply{}, fmt.Errorf("store %d answered %q: %w", at, line, err)
	}
	return answer, nil
}

// storeOf returns the index of a row's store, which every client computes in the same way.
func storeOf(row string, stores int) int {
	hash := fnv.New32a()
	hash.Write([]byte(row))
	return int(hash.Sum32() % uint32(stores))
}

func unexpected(answer reply) error {
	return fmt.Errorf("unexpected answer of a store: %+v", answer)
}
