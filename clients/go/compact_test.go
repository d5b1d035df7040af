package epicepoch

import (
	"math"
	"testing"
)

func TestBothSpellingsHaveTheSameOrder(t *testing.T) {
	const millisecond = uint64(1_700_000_000_123)
	rising := []uint64{
		0, 1, 1<<18 - 1, 1 << 18, millisecond<<18 - 1, millisecond << 18, millisecond<<18 | 7,
		CompactMax - 1, CompactMax,
	}
	var last Timestamp
	for at, compact := range rising {
		timestamp, ok := FromCompact(compact)
		if !ok {
			t.Fatalf("%d is refused", compact)
		}
		if again, ok := timestamp.Compact(); !ok || again != compact {
			t.Fatalf("%d became %d", compact, again)
		}
		if at > 0 && !last.Before(timestamp) {
			t.Fatalf("%d is not above the one before", compact)
		}
		last = timestamp
	}
	if CompactMax > math.MaxInt64 {
		t.Fatal("the largest compact timestamp does not fit into an int64")
	}
}

func TestATimestampWithoutACompactSpellingHasNone(t *testing.T) {
	for _, timestamp := range []Timestamp{
		{Epoch: 1_700_000_000_123_000_001},
		{Epoch: 1_700_000_000_123_000_000, Index: 1 << 18},
		{Epoch: math.MaxUint64, Index: math.MaxUint64},
	} {
		if compact, ok := timestamp.Compact(); ok {
			t.Errorf("%s became %d", timestamp, compact)
		}
	}
	for _, compact := range []uint64{CompactMax + 1, math.MaxUint64} {
		if timestamp, ok := FromCompact(compact); ok {
			t.Errorf("%d became %s", compact, timestamp)
		}
	}
}
