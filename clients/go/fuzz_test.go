package epicepoch

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"
)

// Checks that the decoder ends on any bytes, either with frames or with an error.
func FuzzFrames(f *testing.F) {
	for _, text := range []string{
		"4100000000000000000000000000000017979cfe3d85cd150000000000000007",
		"43000000001e8480000000000000000117979cfe3d85cd158001000000000007",
		"820000010000000e0000000000000003622e6578616d706c653a38303830",
		"8300000000000000000000000000000002",
		"810100000000002845504f434854534f00050008000000000000000700070004000000010008000400000001000900080000000000000001",
	} {
		seed, _ := hex.DecodeString(text)
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		in := frames{from: bytes.NewReader(input)}
		for {
			h, tail, err := in.next()
			if err != nil {
				return
			}
			read(append(h.appendTo(nil), tail...))
			if h.kind == kindIntervalAnswer {
				fuzzInterval(t, h, tail)
			}
		}
	})
}

// fuzzInterval checks that an answer of interval mode that is accepted says how long to wait.
func fuzzInterval(t *testing.T, h head, tail []byte) {
	arrived := time.Now()
	got, err := readInterval(h, tail, h.id%countMax+1, 1, arrived)
	if err != nil {
		return
	}
	width := got.LatestNanos - got.EarliestNanos
	if got.EarliestNanos > got.LatestNanos || width != uint64(h.argument) || got.LatestNanos != got.Timestamp.Epoch {
		t.Errorf("an interval %+v", got)
	}
	if wait := got.ReadyAt().Sub(arrived); uint64(wait) < width+width/8+1 {
		t.Errorf("%v for an interval of %d ns", wait, width)
	}
	if last := (Range{First: got.Timestamp, Count: got.Count}).Last(); last.Index>>48 != 1<<15|1 {
		t.Errorf("%v is not of this node", last)
	}
}
