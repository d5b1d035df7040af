// Package epicepoch is the Go client of EpicEpoch, a replicated timestamp oracle that gives unique,
// strictly increasing 16-byte timestamps.
//
// A [Client] finds the leader, follows it when it moves, and merges goroutines that ask at the same
// time into one request. A caller joins only a request that has not been sent yet, so its timestamp
// is allocated after it asked. If an answer is lost, its timestamps are never used; nothing else is
// lost. So asking again is always safe, and the client asks again until the caller's context ends.
//
//	client, err := epicepoch.Dial(ctx, []string{"db1:8080", "db2:8080", "db3:8080"})
//	if err != nil { … }
//	defer client.Close()
//	start, err := client.Timestamp(ctx)
//
// It speaks the native protocol (docs/protocol.md of the project) and needs only the standard
// library. clients/README.md states the contract of every client.
package epicepoch
