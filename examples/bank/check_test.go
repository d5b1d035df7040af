package bank

import (
	"strings"
	"testing"
)

// story returns a history without an anomaly: a transaction that opens two accounts with 10 each,
// one that moves 3, one that is aborted, and one that reads all.
func story() ([]*Txn, Versions) {
	value := func(balance int64, writer string) Value { return Value{balance, writer} }
	txns := []*Txn{
		{ID: "open", Start: Stamp{100, 1, 2}, Writes: map[string]int64{"a": 10, "b": 10},
			Commit: Stamp{101, 3, 4}, Outcome: Committed},
		{ID: "move", Start: Stamp{110, 5, 6}, Reads: map[string]Value{"a": value(10, "open"), "b": value(10, "open")},
			Writes: map[string]int64{"a": 7, "b": 13}, Commit: Stamp{120, 9, 10}, Outcome: Committed},
		{ID: "late", Start: Stamp{111, 7, 8}, Reads: map[string]Value{"a": value(10, "open"), "b": value(10, "open")},
			Writes: map[string]int64{"a": 9, "b": 11}, Commit: Stamp{121, 11, 12}, Outcome: Aborted},
		{ID: "look", Start: Stamp{130, 13, 14}, Reads: map[string]Value{"a": value(7, "move"), "b": value(13, "move")},
			Outcome: OnlyRead},
	}
	store := Versions{
		"a": {{120, value(7, "move")}, {101, value(10, "open")}},
		"b": {{101, value(10, "open")}, {120, value(13, "move")}},
	}
	return txns, store
}

func TestAHistoryInOrderHasNoFinding(t *testing.T) {
	txns, store := story()
	report := Check(txns, store, 20)
	if len(report.Counts) != 0 {
		t.Fatal(report)
	}
	if report.Timestamps != 7 || report.Reads != 6 || report.Versions != 4 || report.Sums != 5 {
		t.Fatalf("%+v", report)
	}
}

func TestEachRuleIsFound(t *testing.T) {
	for name, one := range map[string]struct {
		rule   Rule
		change func(txns []*Txn, store Versions)
	}{
		"a timestamp twice": {Reused, func(txns []*Txn, _ Versions) { txns[2].Start.TS = 110 }},
		"a timestamp below an earlier one": {OutOfOrder, func(txns []*Txn, _ Versions) {
			txns[3].Start.TS = 119
		}},
		"a commit below its start": {CommitNotAfterStart, func(txns []*Txn, _ Versions) { txns[2].Commit.TS = 105 }},
		"an old version": {WrongRead, func(txns []*Txn, _ Versions) {
			txns[3].Reads["a"] = Value{10, "open"}
		}},
		"an aborted writer's version": {WrongRead, func(txns []*Txn, _ Versions) {
			txns[3].Reads["a"] = Value{9, "late"}
		}},
		"two transactions from one version": {LostUpdate, func(txns []*Txn, store Versions) {
			txns[2].Outcome = Committed
			store["a"] = append(store["a"], Version{121, Value{9, "late"}})
			store["b"] = append(store["b"], Version{121, Value{11, "late"}})
		}},
		"half a transaction":        {Torn, func(_ []*Txn, store Versions) { store["b"] = store["b"][:1] }},
		"half of an unknown one":    {Torn, func(txns []*Txn, store Versions) { txns[1].Outcome, store["b"] = Unknown, store["b"][:1] }},
		"a committed one is gone":   {Torn, func(_ []*Txn, store Versions) { store["a"], store["b"] = store["a"][1:], store["b"][:1] }},
		"an aborted one is there":   {Torn, func(txns []*Txn, _ Versions) { txns[1].Outcome = Aborted }},
		"a version of nobody":       {Torn, func(_ []*Txn, store Versions) { store["a"][0].Writer = "nobody" }},
		"a version somewhere else":  {Torn, func(_ []*Txn, store Versions) { store["a"][0].TS = 122 }},
		"money from nothing":        {Total, func(txns []*Txn, store Versions) { store["a"][0].Balance = 8 }},
		"a snapshot of another sum": {Total, func(txns []*Txn, _ Versions) { txns[3].Reads["a"] = Value{8, "move"} }},
	} {
		txns, store := story()
		one.change(txns, store)
		if report := Check(txns, store, 20); report.Counts[one.rule] == 0 {
			t.Errorf("%s: no %s\n%s", name, one.rule, report)
		}
	}
}

func TestAKilledTransactionIsThereOrNot(t *testing.T) {
	txns, store := story()
	txns[1].Outcome = Unknown
	if report := Check(txns, store, 20); len(report.Counts) != 0 {
		t.Fatal(report)
	}
	txns = []*Txn{txns[0], txns[1]}
	store["a"], store["b"] = store["a"][1:], store["b"][:1]
	if report := Check(txns, store, 20); len(report.Counts) != 0 {
		t.Fatal(report)
	}
}

func TestOnlyTheLastLineOfAProcessMayBeCut(t *testing.T) {
	line := `{"ID":"x","Outcome":""}` + "\n"
	later := `{"ID":"x","Outcome":"committed"}` + "\n"
	txns, err := readHistory(strings.NewReader(lifeLine + line + `{"ID":"y` + lifeLine + later + `{"I`))
	if err != nil || len(txns) != 1 || txns[0].Outcome != Committed {
		t.Fatal(txns, err)
	}
	if _, err := readHistory(strings.NewReader(lifeLine + `{"ID` + "\n" + line)); err == nil {
		t.Fatal("a history with a hole was accepted")
	}
}

func TestLaterLivesHaveLaterEvents(t *testing.T) {
	first, second := NewEvents(0), NewEvents(1)
	if a, b := first.Next(), first.Next(); a >= b || b >= second.Next() {
		t.Fatal("events are not in order")
	}
}
