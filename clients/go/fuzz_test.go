package epicepoch

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// Checks that the decoder ends on any bytes, either with frames or with an error.
func FuzzFrames(f *testing.F) {
	for _, text := range []string{
		"4100000000000000000000000000000017979cfe3d85cd150000000000000007",
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
		}
	})
}
