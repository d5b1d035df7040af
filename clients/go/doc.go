// Package epicepoch is the Go client of EpicEpoch, a replicated timestamp oracle that gives unique,
// strictly increasing 16-byte timestamps.
//
// A [Client] finds the leader, follows it when it moves, and merges goroutines that ask at the same
// time into one request. A caller only ever joins a request that has not been sent yet, so that its
// timestamp is allocated after it asked. A lost answer burns timestamps and nothing else: asking
// again is always safe, and the client does so until the caller's context ends.
//
//	client, err := epicepoch.Dial(ctx, []string{"db1:8080", "db2:8080", "db3:8080"})
//	if err != nil { … }
//	defer client.Close()
//	start, err := client.Timestamp(ctx)
//
// It speaks the native protocol (docs/protocol.md of the project) and needs nothing but the standard
// library. What every client has to do is in clients/README.md.
package epicepoch
