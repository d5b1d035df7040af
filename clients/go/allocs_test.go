package epicepoch

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
)

// serveWithoutMemory answers requests on a connection and does not allocate while it runs. So a
// test can count the client's allocations in the same process.
func serveWithoutMemory(stream net.Conn, welcomeFrame []byte) {
	defer stream.Close()
	var request [headSize]byte
	var answer [headSize + TimestampSize]byte
	if _, err := io.ReadFull(stream, request[:]); err != nil {
		return
	}
	io.CopyN(io.Discard, stream, int64(binary.BigEndian.Uint32(request[4:])))
	stream.Write(welcomeFrame)
	answer[0] = kindAnswer
	var next uint64
	for {
		if _, err := io.ReadFull(stream, request[:]); err != nil {
			return
		}
		copy(answer[4:headSize], request[4:])
		binary.BigEndian.PutUint64(answer[headSize:], 1)
		next++
		binary.BigEndian.PutUint64(answer[headSize+8:], next)
		if _, err := stream.Write(answer[:]); err != nil {
			return
		}
	}
}

// Each request allocates one object, its channel. Callers that share a request share this
// allocation, so a call costs at most one.
func TestACallAllocatesAtMostOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	leader := &Member{Node: 1, Addr: listener.Addr().String()}
	welcomeFrame := (&welcome{
		cluster: &testCluster, node: 1, leader: leader, inFlightMax: 1024, idleMillis: 120000, countMax: countMax,
	}).frame()
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			go serveWithoutMemory(stream, welcomeFrame)
		}
	}()
	client := dial(t, []string{leader.Addr})
	took := testing.AllocsPerRun(5000, func() {
		if _, err := client.Timestamp(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%v allocations for a call", took)
	if took > 1 {
		t.Fatalf("%v allocations for a call", took)
	}
}
