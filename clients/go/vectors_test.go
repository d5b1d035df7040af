package epicepoch

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// vectors reads the golden vectors that all implementations share.
func vectors(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "crates", "wire", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

type nativeVector struct {
	From  string         `json:"from"`
	Hex   string         `json:"hex"`
	Name  string         `json:"name"`
	Means map[string]any `json:"means"`
}

func (v nativeVector) bytes(t *testing.T) []byte {
	t.Helper()
	bytes, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

type nativeVectors struct {
	ToServer []nativeVector `json:"to_server"`
	ToClient []nativeVector `json:"to_client"`
	ReadOnly []nativeVector `json:"read_only"`
	Refused  []nativeVector `json:"refused"`
}

func u64(t *testing.T, means map[string]any, key string) uint64 {
	t.Helper()
	switch value := means[key].(type) {
	case string:
		number, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return number
	case float64:
		return uint64(value)
	default:
		t.Fatalf("%s is %v", key, value)
		return 0
	}
}

func optionalCluster(t *testing.T, means map[string]any) *Cluster {
	t.Helper()
	if means["cluster"] == nil {
		return nil
	}
	id, err := hex.DecodeString(means["cluster"].(string))
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{ID: [16]byte(id), History: u64(t, means, "history")}
}

var guarantees = map[string]Guarantee{"quorum": GuaranteeQuorum, "lease": GuaranteeLease}

// written encodes a frame that a client sends.
func written(t *testing.T, means map[string]any) []byte {
	t.Helper()
	switch kind := means["kind"]; kind {
	case "request":
		return requestFrame(u64(t, means, "id"), u64(t, means, "count")).appendTo(nil)
	case "latest":
		return latestFrame(u64(t, means, "id")).appendTo(nil)
	case "ping":
		return head{kind: kindPing, id: u64(t, means, "id")}.appendTo(nil)
	case "pong":
		return head{kind: kindPong, id: u64(t, means, "id")}.appendTo(nil)
	case "hello":
		return hello{
			features:    u64(t, means, "features"),
			clusterName: means["cluster_name"].(string),
			cluster:     optionalCluster(t, means),
			agent:       means["agent"].(string),
			token:       optionalText(means, "token"),
			guarantee:   guarantees[optionalText(means, "guarantee")],

			needsCompact: optionalText(means, "timestamp_format") == "compact",
		}.appendTo(nil)
	default:
		t.Fatalf("a frame of kind %v", kind)
		return nil
	}
}

// read decodes a frame that a node sends, as the client does. It returns the frame's fields under
// the names that the vectors use.
func read(bytes []byte) (map[string]any, error) {
	h := readHead(bytes)
	size, err := h.tailSize()
	if err != nil {
		return nil, err
	}
	tail := bytes[headSize:]
	if len(tail) != size {
		return nil, protocolError("%d bytes follow, not %d", len(tail), size)
	}
	id := strconv.FormatUint(h.id, 10)
	switch h.kind {
	case kindAnswer:
		answer, isLatest, err := readRange(h, tail, GuaranteeLease)
		if err != nil {
			return nil, err
		}
		proof := "round"
		if _, _, err := readRange(h, tail, GuaranteeQuorum); err != nil {
			proof = "lease"
		}
		if isLatest {
			return map[string]any{
				"kind": "latest_answer", "id": id, "latest": answer.First.String(), "proof": proof,
			}, nil
		}
		return map[string]any{
			"kind": "answer", "id": id, "count": fmt.Sprint(answer.Count), "first": answer.First.String(),
			"proof": proof,
		}, nil
	case kindError:
		refusal, closes, err := readError(h, tail, "")
		if err != nil {
			return nil, err
		}
		var name any
		if sentinel, known := sentinels[refusal.Code]; known {
			name = sentinel.Error()
		}
		return map[string]any{
			"kind": "error", "id": id, "code": float64(refusal.Code), "name": name, "text": refusal.Text,
			"closes": closes,
		}, nil
	case kindLeader:
		leader, err := readLeader(h, tail)
		if err != nil {
			return nil, err
		}
		if leader == nil {
			leader = &Member{}
		}
		return map[string]any{"kind": "leader", "node": fmt.Sprint(leader.Node), "addr": leader.Addr}, nil
	case kindPing, kindPong, kindGoodbye:
		if err := checkPlain(h); err != nil {
			return nil, err
		}
		switch h.kind {
		case kindPing:
			return map[string]any{"kind": "ping", "id": id}, nil
		case kindPong:
			return map[string]any{"kind": "pong", "id": id}, nil
		}
		return map[string]any{"kind": "goodbye"}, nil
	case kindWelcome:
		w, err := readWelcome(h, tail)
		if err != nil {
			return nil, err
		}
		return welcomeMeans(w), nil
	case kindRequest, kindHello:
		return nil, protocolError("a frame that only clients send")
	default:
		return map[string]any{"kind": "unknown"}, nil
	}
}

func welcomeMeans(w *welcome) map[string]any {
	one := func(m Member) map[string]any {
		return map[string]any{"node": fmt.Sprint(m.Node), "addr": m.Addr}
	}
	members := []any{}
	for _, m := range w.members {
		members = append(members, one(m))
	}
	means := map[string]any{
		"kind": "welcome", "version": float64(version), "features": fmt.Sprint(w.features),
		"cluster_name": w.clusterName, "node": fmt.Sprint(w.node), "members": members,
		"in_flight_max": float64(w.inFlightMax), "idle_ms": float64(w.idleMillis),
		"count_max": fmt.Sprint(w.countMax), "cluster": nil, "history": nil, "leader": nil,
	}
	if w.cluster != nil {
		means["cluster"] = hex.EncodeToString(w.cluster.ID[:])
		means["history"] = fmt.Sprint(w.cluster.History)
	}
	if w.leader != nil {
		means["leader"] = one(*w.leader)
	}
	return means
}

func TestFramesAreWrittenAsTheVectorsSay(t *testing.T) {
	var all nativeVectors
	vectors(t, "native.json", &all)
	if len(all.ToServer) < 5 {
		t.Fatalf("only %d vectors", len(all.ToServer))
	}
	for _, v := range all.ToServer {
		t.Run(v.Name, func(t *testing.T) {
			if got := hex.EncodeToString(written(t, v.Means)); got != v.Hex {
				t.Errorf("wrote %s, not %s", got, v.Hex)
			}
		})
	}
}

func TestFramesAreReadAsTheVectorsSay(t *testing.T) {
	var all nativeVectors
	vectors(t, "native.json", &all)
	if len(all.ToClient) < 10 {
		t.Fatalf("only %d vectors", len(all.ToClient))
	}
	for _, v := range append(all.ToClient, all.ReadOnly...) {
		if v.From == "client" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			means, err := read(v.bytes(t))
			if err != nil {
				t.Fatal(err)
			}
			got, _ := json.Marshal(means)
			want, _ := json.Marshal(v.Means)
			if string(got) != string(want) {
				t.Errorf("read %s\nnot  %s", got, want)
			}
		})
	}
}

func TestFramesThatBreakTheProtocolAreRefused(t *testing.T) {
	var all nativeVectors
	vectors(t, "native.json", &all)
	refused := 0
	for _, v := range all.Refused {
		if v.From == "client" {
			continue
		}
		refused++
		t.Run(v.Name, func(t *testing.T) {
			bytes := v.bytes(t)
			if len(bytes) < headSize {
				bytes = append(bytes, make([]byte, headSize-len(bytes))...)
			}
			if means, err := read(bytes); err == nil {
				t.Errorf("was read as %v", means)
			}
		})
	}
	if refused < 5 {
		t.Fatalf("only %d vectors", refused)
	}
}

func TestIntervalModeIsWhatTheVectorsSay(t *testing.T) {
	var all struct {
		Requests       []map[string]any `json:"requests"`
		Answers        []nativeVector   `json:"answers"`
		RefusedAnswers []nativeVector   `json:"refused_answers"`
	}
	vectors(t, "intervals.json", &all)
	if len(all.Requests) < 3 || len(all.Answers) < 5 || len(all.RefusedAnswers) < 4 {
		t.Fatalf("only %d, %d and %d vectors", len(all.Requests), len(all.Answers), len(all.RefusedAnswers))
	}
	for _, request := range all.Requests {
		bytes := intervalFrame(u64(t, request, "id"), u64(t, request, "count")).appendTo(nil)
		if got := hex.EncodeToString(bytes); got != request["hex"] {
			t.Errorf("wrote %s, not %s", got, request["hex"])
		}
	}
	arrived := time.Now()
	answer := func(v nativeVector, node uint64) (head, Interval, error) {
		bytes := v.bytes(t)
		h := readHead(bytes)
		if size, err := h.tailSize(); err != nil || size != len(bytes)-headSize || h.kind != kindIntervalAnswer {
			t.Fatalf("%s: kind %d, %d bytes follow: %v", v.Name, h.kind, size, err)
		}
		got, err := readInterval(h, bytes[headSize:], 1, node, arrived)
		return h, got, err
	}
	for _, v := range all.Answers {
		h, got, err := answer(v, u64(t, v.Means, "node"))
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		read := map[string]any{
			"id": fmt.Sprint(h.id), "timestamp": got.Timestamp.String(), "node": v.Means["node"],
			"earliest": fmt.Sprint(got.EarliestNanos), "latest": fmt.Sprint(got.LatestNanos),
			"wait":  fmt.Sprint(got.ReadyAt().Sub(arrived).Nanoseconds()),
			"count": fmt.Sprint(got.Timestamp.Index & (1<<intervalCountBits - 1)),
		}
		if fmt.Sprint(read) != fmt.Sprint(v.Means) {
			t.Errorf("%s: read %v\nnot  %v", v.Name, read, v.Means)
		}
	}
	for _, v := range all.RefusedAnswers {
		if _, got, err := answer(v, 1); err == nil {
			t.Errorf("%s: was read as %+v", v.Name, got)
		}
	}
}

func TestErrorsHaveTheirNumbers(t *testing.T) {
	var all struct {
		Errors []struct {
			Name      string `json:"name"`
			Number    Code   `json:"number"`
			Retryable bool   `json:"retryable"`
		} `json:"errors"`
	}
	vectors(t, "errors.json", &all)
	// These errors exist only over HTTP.
	others := map[string]bool{
		"BAD_FORMAT": true, "NOT_FOUND": true, "METHOD_NOT_ALLOWED": true,
		"FORBIDDEN": true, "REFUSED": true, "BUSY": true, "NOT_CAUGHT_UP": true, "UNSETTLED": true,
	}
	for _, one := range all.Errors {
		if others[one.Name] {
			continue
		}
		sentinel, known := sentinels[one.Number]
		if !known || sentinel.Error() != one.Name {
			t.Errorf("%d is %v, not %s", one.Number, sentinel, one.Name)
		}
		// The vectors call INTERNAL not retryable, because the node is broken. The client retries
		// it, because another node may answer.
		if cured := isCurable(&Error{Code: one.Number}); cured != (one.Retryable || one.Name == "INTERNAL") {
			t.Errorf("%s: another attempt: %v", one.Name, cured)
		}
	}
}

func TestTimestampsAreThoseOfTheVectors(t *testing.T) {
	var all struct {
		Timestamps []struct{ Bytes, Text, Epoch, Index string } `json:"timestamps"`
		Refused    []string                                     `json:"refused_texts"`
		Ranges     []struct{ Bytes, First, Last, Count string } `json:"ranges"`
		Compact    []struct{ U64, Text string }                 `json:"compact"`
		NotCompact []string                                     `json:"not_compact"`
		NoCompact  []string                                     `json:"refused_compact"`
	}
	vectors(t, "timestamps.json", &all)
	var last Timestamp
	for at, v := range all.Timestamps {
		parsed, err := Parse(v.Text)
		if err != nil {
			t.Fatal(err)
		}
		bytes := parsed.Bytes()
		if hex.EncodeToString(bytes[:]) != v.Bytes || FromBytes(bytes) != parsed || parsed.String() != v.Text {
			t.Errorf("%s: %v", v.Text, parsed)
		}
		if fmt.Sprint(parsed.Epoch) != v.Epoch || fmt.Sprint(parsed.Index) != v.Index {
			t.Errorf("%s: epoch %d, index %d", v.Text, parsed.Epoch, parsed.Index)
		}
		if at > 0 && !last.Before(parsed) {
			t.Errorf("%v is not above %v", parsed, last)
		}
		if parsed.Before(parsed) {
			t.Errorf("%v is below itself", parsed)
		}
		last = parsed
		text, err := json.Marshal(parsed)
		if err != nil || string(text) != `"`+v.Text+`"` {
			t.Errorf("%s is %s in JSON, %v", v.Text, text, err)
		}
		var back Timestamp
		if err := json.Unmarshal(text, &back); err != nil || back != parsed {
			t.Errorf("%s comes back from JSON as %v, %v", v.Text, back, err)
		}
	}
	for at, v := range all.Compact {
		compact, err := strconv.ParseUint(v.U64, 10, 64)
		timestamp, ok := FromCompact(compact)
		if err != nil || !ok || timestamp.String() != v.Text {
			t.Errorf("%s is %v", v.U64, timestamp)
		}
		if back, ok := timestamp.Compact(); !ok || back != compact {
			t.Errorf("%s comes back as %d", v.U64, back)
		}
		if at > 0 && !last.Before(timestamp) {
			t.Errorf("%v is not above %v", timestamp, last)
		}
		last = timestamp
	}
	for _, text := range all.NotCompact {
		timestamp, err := Parse(text)
		if compact, ok := timestamp.Compact(); err != nil || ok {
			t.Errorf("%s is %d", text, compact)
		}
	}
	for _, text := range all.NoCompact {
		compact, err := strconv.ParseUint(text, 10, 64)
		if timestamp, ok := FromCompact(compact); err != nil || ok {
			t.Errorf("%s is %v", text, timestamp)
		}
	}
	for _, text := range all.Refused {
		if parsed, err := Parse(text); err == nil {
			t.Errorf("%q is %v", text, parsed)
		}
		kept := last
		if err := kept.UnmarshalText([]byte(text)); err == nil || kept != last {
			t.Errorf("%q was read as %v, %v", text, kept, err)
		}
	}
	for _, v := range all.Ranges {
		first, err := Parse(v.First)
		if err != nil {
			t.Fatal(err)
		}
		count, _ := strconv.ParseUint(v.Count, 10, 64)
		whole := Range{First: first, Count: count}
		if got := whole.Last().String(); got != v.Last {
			t.Errorf("the last is %s, not %s", got, v.Last)
		}
		if !panics(func() { whole.At(count) }) {
			t.Errorf("%v has a timestamp behind its last one", whole)
		}
	}
}

func panics(call func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	call()
	return false
}

func TestWallTimesAreThoseOfTheVectors(t *testing.T) {
	var all struct {
		WallTimes []struct {
			Lowest, Highest string
			UnixNanos       string `json:"unix_ns"`
		} `json:"wall_times"`
	}
	vectors(t, "timestamps.json", &all)
	for _, v := range all.WallTimes {
		nanos, err := strconv.ParseUint(v.UnixNanos, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(nanos/1e9), int64(nanos%1e9))
		if Lowest(at).String() != v.Lowest || Highest(at).String() != v.Highest {
			t.Errorf("%s: %v to %v", v.UnixNanos, Lowest(at), Highest(at))
		}
		if !Lowest(at).Time().Equal(at) {
			t.Errorf("%s comes back as %v", v.UnixNanos, Lowest(at).Time())
		}
	}
	if before := time.Unix(-1, 0); !Lowest(before).IsZero() {
		t.Errorf("before 1970: %v", Lowest(before))
	}
	if late := time.Unix(1<<40, 0); Lowest(late).Epoch != 1<<64-1 {
		t.Errorf("after 2554: %v", Lowest(late))
	}
	// The last epoch is within this second.
	const lastSecond = 18446744073
	for nanos, want := range map[int64]uint64{
		0: lastSecond * 1e9, 709551614: 1<<64 - 2, 709551615: 1<<64 - 1, 709551616: 1<<64 - 1,
	} {
		if got := Lowest(time.Unix(lastSecond, nanos)).Epoch; got != want {
			t.Errorf("%d ns: %d, not %d", nanos, got, want)
		}
	}
}

func optionalText(means map[string]any, name string) string {
	text, _ := means[name].(string)
	return text
}
