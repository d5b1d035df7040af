package epicepoch

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// readFields reads a welcome that has the required fields, followed by the given ones.
func readFields(fields []byte) (*welcome, error) {
	must := appendField(nil, tagNode, binary.BigEndian.AppendUint64(nil, 1))
	must = appendField(must, tagInFlightMax, binary.BigEndian.AppendUint32(nil, 1024))
	must = appendField(must, tagCountMax, binary.BigEndian.AppendUint64(nil, countMax))
	tail := append(must, fields...)
	return readWelcome(head{kind: kindWelcome, flags: version, argument: uint32(len(tail)), id: magic}, tail)
}

func TestAWelcomeMayNameNoIdleLimit(t *testing.T) {
	w, err := readFields(nil)
	if err != nil {
		t.Fatal(err)
	}
	if between := w.pingEvery(); between != idleDefault/3 {
		t.Errorf("a ping every %v", between)
	}
}

func TestUnknownFieldsOfLaterVersionsMayRepeat(t *testing.T) {
	for _, tag := range []uint16{tagMember + 1, 0x003f, 0x0040, tagMustKnow - 1} {
		one := appendField(nil, tag, []byte{1})
		if _, err := readFields(slices.Concat(one, one)); err != nil {
			t.Errorf("%#x: %v", tag, err)
		}
	}
	for _, tag := range []uint16{tagAgent} {
		one := appendField(nil, tag, []byte{1})
		if _, err := readFields(slices.Concat(one, one)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%#x: %v", tag, err)
		}
	}
}

func TestAClusterWithoutAnIDIsNone(t *testing.T) {
	idle := appendField(nil, tagIdle, binary.BigEndian.AppendUint32(nil, 60000))
	for last, refused := range map[byte]bool{0: true, 1: false} {
		id := make([]byte, 24)
		id[15] = last
		if _, err := readFields(appendField(idle, tagCluster, id)); errors.Is(err, ErrProtocol) != refused {
			t.Error(last, err)
		}
	}
}
