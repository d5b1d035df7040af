package epicepoch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"
)

// readFields reads a welcome that has the required fields, followed by the given ones.
func readFields(fields []byte) (*welcome, error) {
	must := appendField(nil, tagNode, binary.BigEndian.AppendUint64(nil, 1))
	must = appendField(must, tagInFlightMax, binary.BigEndian.AppendUint32(nil, 1024))
	must = appendField(must, tagCountMax, binary.BigEndian.AppendUint64(nil, countMax))
	return readTail(append(must, fields...))
}

// readTail reads a welcome that has only the given fields.
func readTail(tail []byte) (*welcome, error) {
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

func TestAPingIsSentThreeTimesWithinTheIdleLimit(t *testing.T) {
	for millis, want := range map[uint32]time.Duration{
		0:     40 * time.Second, // no limit is named
		1:     100 * time.Millisecond,
		900:   300 * time.Millisecond,
		60000: 20 * time.Second,
	} {
		if between := (&welcome{idleMillis: millis}).pingEvery(); between != want {
			t.Errorf("an idle limit of %d ms: a ping every %v", millis, between)
		}
	}
}

// Each limit is tested with the last value that is allowed and with the first that is not.
func TestFramesAreReadUpToTheirLimits(t *testing.T) {
	text := func(size int) []byte { return bytes.Repeat([]byte{'a'}, size) }
	field := func(tag uint16, value []byte) error {
		_, err := readFields(appendField(nil, tag, value))
		return err
	}
	member := func(node uint64, size int) []byte {
		return append(binary.BigEndian.AppendUint64(nil, node), text(size)...)
	}
	for name, one := range map[string]struct {
		read             func(value int) error
		allowed, refused []int
	}{
		"bytes in the tail of a frame": {func(size int) error {
			_, err := head{kind: kindWelcome, argument: uint32(size)}.tailSize()
			return err
		}, []int{0, welcomeTailMax}, []int{welcomeTailMax + 1}},
		"bytes in the text of an error": {func(size int) error {
			_, _, err := readError(head{kind: kindError}, text(size), "")
			return err
		}, []int{0, errorTextMax}, []int{errorTextMax + 1}},
		"bytes in the address of a new leader": {func(size int) error {
			_, err := readLeader(head{kind: kindLeader, id: 1}, text(size))
			return err
		}, []int{1, addressMax}, []int{0, addressMax + 1}},
		"bytes in the name of a cluster": {func(size int) error {
			return field(tagClusterName, text(size))
		}, []int{0, nameMax}, []int{nameMax + 1}},
		"a byte that the name of a cluster has": {func(char int) error {
			return field(tagClusterName, []byte{byte(char)})
		}, []int{0, 0x7f}, []int{0x80}},
		"bytes in the address of a member": {func(size int) error {
			return field(tagMember, member(1, size))
		}, []int{1, addressMax}, []int{0, addressMax + 1}},
		"the node id of a member": {func(node int) error {
			return field(tagMember, member(uint64(node), 1))
		}, []int{1}, []int{0}},
		"bytes in the last field": {func(size int) error {
			return field(tagMustKnow-1, text(size))
		}, []int{0, 1}, nil},
		"the number of a field that is unknown": {func(tag int) error {
			return field(uint16(tag), nil)
		}, []int{tagMustKnow - 1}, []int{tagMustKnow, tagMustKnow + 1}},
	} {
		for _, value := range one.allowed {
			if err := one.read(value); err != nil {
				t.Errorf("%s: %d: %v", name, value, err)
			}
		}
		for _, value := range one.refused {
			if err := one.read(value); !errors.Is(err, ErrProtocol) {
				t.Errorf("%s: %d: %v", name, value, err)
			}
		}
	}
}

func TestAWelcomeWithoutOneOfItsRequiredFieldsIsRefused(t *testing.T) {
	fields := [][]byte{
		appendField(nil, tagNode, binary.BigEndian.AppendUint64(nil, 1)),
		appendField(nil, tagInFlightMax, binary.BigEndian.AppendUint32(nil, 1)),
		appendField(nil, tagCountMax, binary.BigEndian.AppendUint64(nil, 1)),
	}
	if _, err := readTail(slices.Concat(fields...)); err != nil {
		t.Error(err)
	}
	for at := range fields {
		without := slices.Delete(slices.Clone(fields), at, at+1)
		if w, err := readTail(slices.Concat(without...)); !errors.Is(err, ErrProtocol) {
			t.Error(at, w, err)
		}
	}
}
