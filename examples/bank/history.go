package bank

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Outcome is how a transaction ended, as its client knows it.
type Outcome string

const (
	// Unknown: the client was killed, or does not know whether the store committed.
	Unknown Outcome = ""
	// Committed: the store has said so.
	Committed Outcome = "committed"
	// Aborted: the store keeps nothing of it.
	Aborted Outcome = "aborted"
	// OnlyRead: it had nothing to write.
	OnlyRead Outcome = "read"
)

// Stamp is a timestamp, and when a client asked for it.
type Stamp struct {
	TS uint64
	// Asked and Got are positions in one order of all events (see [Events]).
	Asked, Got uint64
}

// Txn is the record of one transaction.
type Txn struct {
	// ID is unique. Each value that the transaction writes contains it.
	ID string
	// Start is the timestamp of its snapshot.
	Start Stamp
	// Reads has what it read from its snapshot.
	Reads map[string]Value
	// Writes has the new balances.
	Writes map[string]int64 `json:",omitempty"`
	// Commit is zero if the transaction took no commit timestamp.
	Commit  Stamp
	Outcome Outcome
}

// Value is the content of an account.
type Value struct {
	Balance int64
	// Writer is the ID of the transaction that wrote it.
	Writer string
}

// Bytes returns the value as a store keeps it.
func (v Value) Bytes() []byte {
	return []byte(strconv.FormatInt(v.Balance, 10) + " " + v.Writer)
}

// ParseValue reads the bytes of a value.
func ParseValue(bytes []byte) (Value, error) {
	balance, writer, found := strings.Cut(string(bytes), " ")
	number, err := strconv.ParseInt(balance, 10, 64)
	if !found || err != nil {
		return Value{}, fmt.Errorf("%q is not the value of an account", bytes)
	}
	return Value{Balance: number, Writer: writer}, nil
}

// Version is one version of an account in the store.
type Version struct {
	TS uint64
	Value
}

// Versions has all versions of all accounts at the end, in any order.
type Versions map[string][]Version

// Account returns the key of an account.
func Account(number int) string { return fmt.Sprintf("account/%03d", number) }

// lifeBits is how many low bits of an event's position count the events of one process.
const lifeBits = 40

// Events gives each event a position. Positions of one process rise in real time. A later process
// must have a higher life, and may start only when the one before has ended.
type Events struct{ last atomic.Uint64 }

// NewEvents begins the events of a life, 0 to 2^24 - 1.
func NewEvents(life uint64) *Events {
	e := &Events{}
	e.last.Store(life << lifeBits)
	return e
}

// Next returns the position of an event that happens now.
func (e *Events) Next() uint64 { return e.last.Add(1) }

// History writes the records of one process to a file. Each line has the whole record of a
// transaction; a later line of the same ID replaces it. A line is one write to the system, so a
// killed process leaves whole lines, but for the last.
type History struct {
	mu   sync.Mutex
	file *os.File
}

// lifeLine separates the lines of two processes.
const lifeLine = "\n--- a process starts\n"

// OpenHistory appends to a file.
func OpenHistory(path string) (*History, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := file.WriteString(lifeLine); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &History{file: file}, nil
}

// Record writes the record of a transaction. A transaction that writes must be recorded before its
// commit begins: after a kill its writes may be in the store.
func (h *History) Record(txn *Txn) error {
	line, err := json.Marshal(txn)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err = h.file.Write(append(line, '\n'))
	return err
}

// Close closes the file.
func (h *History) Close() error { return h.file.Close() }

// ReadHistory reads the records of all processes.
func ReadHistory(path string) ([]*Txn, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readHistory(file)
}

func readHistory(from io.Reader) ([]*Txn, error) {
	all := map[string]int{}
	var txns []*Txn
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	// cut is the error of the last line, if it was no record. It is accepted at the end of a process.
	var cut error
	for lines.Scan() {
		line := lines.Text()
		if line == strings.TrimSpace(lifeLine) {
			cut = nil
			continue
		}
		if line == "" {
			continue
		}
		if cut != nil {
			return nil, cut
		}
		txn := new(Txn)
		if err := json.Unmarshal([]byte(line), txn); err != nil {
			cut = fmt.Errorf("a line in the middle of the history is no record: %w: %.80q", err, line)
			continue
		}
		if at, isKnown := all[txn.ID]; isKnown {
			txns[at] = txn
			continue
		}
		all[txn.ID] = len(txns)
		txns = append(txns, txn)
	}
	return txns, lines.Err()
}
