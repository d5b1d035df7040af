package epicepoch

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"math"
	"time"
)

// TimestampSize is the length of a timestamp in bytes.
const TimestampSize = 16

const (
	// CompactIndexBits is how many low bits of a compact timestamp hold the index.
	CompactIndexBits = 18
	// CompactMax is the largest compact timestamp. It is below 2^63, so compact timestamps also fit
	// into an int64, in the same order.
	CompactMax = (math.MaxUint64/compactEpoch)<<CompactIndexBits | (compactIndexes - 1)

	compactIndexes = uint64(1) << CompactIndexBits
	// compactCountMax is the largest count of a request: a millisecond has no more compact timestamps.
	compactCountMax = compactIndexes
	compactEpoch    = uint64(time.Millisecond)
)

// Timestamp is a moment that the oracle gave to exactly one caller. Timestamps have the same order
// as their bytes: first by epoch, then by index.
type Timestamp struct {
	// Epoch is Unix time in nanoseconds.
	Epoch uint64
	// Index is the position within the epoch, from 0.
	Index uint64
}

// Range is a sequence of timestamps of one epoch with consecutive indexes.
type Range struct {
	// First is the lowest timestamp.
	First Timestamp
	// Count is the number of timestamps, at least 1.
	Count uint64
}

// Lowest returns the lowest timestamp of a wall time, for queries that begin at that time. For a
// time before 1970 it is the zero timestamp. For a time after 2554 it has the highest epoch.
func Lowest(at time.Time) Timestamp { return Timestamp{Epoch: epochOf(at)} }

// Highest returns the highest timestamp of a wall time, for queries that end at that time.
func Highest(at time.Time) Timestamp {
	return Timestamp{Epoch: epochOf(at), Index: math.MaxUint64}
}

// epochOf converts a wall time to an epoch. It works until 2554, but [time.Time.UnixNano] only
// until 2262.
func epochOf(at time.Time) uint64 {
	seconds := at.Unix()
	if seconds < 0 {
		return 0
	}
	const secondsMax = math.MaxUint64 / uint64(time.Second)
	if uint64(seconds) > secondsMax {
		return math.MaxUint64
	}
	whole, part := uint64(seconds)*uint64(time.Second), uint64(at.Nanosecond())
	if whole > math.MaxUint64-part {
		return math.MaxUint64
	}
	return whole + part
}

// FromBytes reads the 16 bytes of a timestamp.
func FromBytes(bytes [TimestampSize]byte) Timestamp {
	return Timestamp{
		Epoch: binary.BigEndian.Uint64(bytes[:8]),
		Index: binary.BigEndian.Uint64(bytes[8:]),
	}
}

// Parse reads the 32 hexadecimal digits that [Timestamp.String] writes.
func Parse(text string) (Timestamp, error) {
	var bytes [TimestampSize]byte
	if len(text) != 2*TimestampSize {
		return Timestamp{}, fmt.Errorf("epicepoch: a timestamp has 32 hexadecimal digits, %q has not", text)
	}
	if _, err := hex.Decode(bytes[:], []byte(text)); err != nil {
		return Timestamp{}, fmt.Errorf("epicepoch: %q is no timestamp: %w", text, err)
	}
	return FromBytes(bytes), nil
}

// Bytes returns the timestamp as a key. The order of the bytes is the order of the timestamps.
func (t Timestamp) Bytes() [TimestampSize]byte {
	var bytes [TimestampSize]byte
	binary.BigEndian.PutUint64(bytes[:8], t.Epoch)
	binary.BigEndian.PutUint64(bytes[8:], t.Index)
	return bytes
}

// Compact returns the compact spelling of the timestamp, milliseconds << 18 | index, and true. If the
// epoch is not a whole millisecond, or the index is 2^18 or higher, there is none, and it returns
// false.
// In a cluster with TIMESTAMP_FORMAT=compact every timestamp has a compact spelling. Both spellings
// have the same order.
func (t Timestamp) Compact() (uint64, bool) {
	if t.Epoch%compactEpoch != 0 || t.Index >= compactIndexes {
		return 0, false
	}
	return t.Epoch/compactEpoch<<CompactIndexBits | t.Index, true
}

// CompactFirst returns the compact spelling of the lowest timestamp; those of the others follow it
// without a gap. If a timestamp of the range has none, the error is [ErrNotCompact]. See
// [Timestamp.Compact].
func (r Range) CompactFirst() (uint64, error) {
	first, isCompact := r.First.Compact()
	if _, isLastCompact := r.Last().Compact(); !isCompact || !isLastCompact {
		const advice = "change the cluster with epicepoch settings set TIMESTAMP_FORMAT=compact"
		return 0, fmt.Errorf("%w: the cluster gave %s, which does not fit into 64 bits: %s", ErrNotCompact, r.First, advice)
	}
	return first, nil
}

// FromCompact reads a compact timestamp. It returns false above [CompactMax].
func FromCompact(compact uint64) (Timestamp, bool) {
	if compact > CompactMax {
		return Timestamp{}, false
	}
	return Timestamp{
		Epoch: compact >> CompactIndexBits * compactEpoch,
		Index: compact % compactIndexes,
	}, true
}

// Append appends the 16 bytes of the timestamp.
func (t Timestamp) Append(to []byte) []byte {
	to = binary.BigEndian.AppendUint64(to, t.Epoch)
	return binary.BigEndian.AppendUint64(to, t.Index)
}

// String returns the bytes as 32 lower-case hexadecimal digits. The texts have the order of the
// timestamps.
func (t Timestamp) String() string {
	bytes := t.Bytes()
	return hex.EncodeToString(bytes[:])
}

// MarshalText implements [encoding.TextMarshaler].
func (t Timestamp) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Timestamp) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err == nil {
		*t = parsed
	}
	return err
}

// Time returns the wall time of the epoch. It is in UTC.
func (t Timestamp) Time() time.Time {
	const second = uint64(time.Second)
	return time.Unix(int64(t.Epoch/second), int64(t.Epoch%second)).UTC()
}

// Compare returns -1, 0 or 1, as [cmp.Compare] does.
func (t Timestamp) Compare(other Timestamp) int {
	if order := cmp.Compare(t.Epoch, other.Epoch); order != 0 {
		return order
	}
	return cmp.Compare(t.Index, other.Index)
}

// Before returns whether t is lower than other.
func (t Timestamp) Before(other Timestamp) bool { return t.Compare(other) < 0 }

// IsZero returns whether t is the zero timestamp, which the oracle never gives.
func (t Timestamp) IsZero() bool { return t == Timestamp{} }

// At returns the timestamp at an offset. It panics unless 0 <= offset < r.Count.
func (r Range) At(offset uint64) Timestamp {
	if offset >= r.Count {
		panic(fmt.Sprintf("epicepoch: offset %d of a range of %d", offset, r.Count))
	}
	return Timestamp{Epoch: r.First.Epoch, Index: r.First.Index + offset}
}

// Last returns the highest timestamp.
func (r Range) Last() Timestamp { return r.At(r.Count - 1) }

// All iterates over the timestamps, lowest first.
func (r Range) All() iter.Seq[Timestamp] {
	return func(yield func(Timestamp) bool) {
		for offset := range r.Count {
			if !yield(r.At(offset)) {
				return
			}
		}
	}
}
