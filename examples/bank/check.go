package bank

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Rule is what a finding breaks.
type Rule string

const (
	// Reused: one timestamp was given twice.
	Reused Rule = "Reused"
	// OutOfOrder: a timestamp is not above one that a client had before it was asked for.
	OutOfOrder Rule = "OutOfOrder"
	// CommitNotAfterStart: a commit timestamp is not above the start timestamp of its transaction.
	CommitNotAfterStart Rule = "CommitNotAfterStart"
	// WrongRead: a read saw another version than the newest one at or below its start timestamp.
	WrongRead Rule = "WrongRead"
	// LostUpdate: a transaction replaced a version that was committed after it had started.
	LostUpdate Rule = "LostUpdate"
	// Torn: the store has a part of a transaction, has it at another timestamp, has an aborted one, or
	// does not have a committed one.
	Torn Rule = "Torn"
	// Total: the sum over all accounts changed.
	Total Rule = "Total"
)

// Finding is a broken rule.
type Finding struct {
	Rule Rule
	Text string
}

// Report is what the checker found.
type Report struct {
	// Findings has at most findingsMax examples of each rule, Counts has all of them.
	Findings []Finding
	Counts   map[Rule]int
	// Timestamps, Reads, Versions and Sums count what was checked.
	Timestamps, Reads, Versions, Sums int
}

// findingsMax is how many findings of a rule a report shows.
const findingsMax = 3

func (r *Report) find(rule Rule, format string, arguments ...any) {
	r.Counts[rule]++
	if r.Counts[rule] <= findingsMax {
		r.Findings = append(r.Findings, Finding{rule, fmt.Sprintf(format, arguments...)})
	}
}

// Check compares the records of all transactions with the final content of the store. One
// transaction must have opened all accounts. It uses no clock.
func Check(txns []*Txn, store Versions, total int64) *Report {
	report := &Report{Counts: map[Rule]int{}}
	// Each account has its versions in the order of their timestamps.
	sorted := Versions{}
	for account, versions := range store {
		sorted[account] = slices.SortedFunc(slices.Values(versions), func(a, b Version) int {
			return cmp.Compare(a.TS, b.TS)
		})
	}
	byID := map[string]*Txn{}
	for _, txn := range txns {
		byID[txn.ID] = txn
	}
	checkTimestamps(report, txns)
	checkWrites(report, txns, byID, sorted)
	checkReads(report, txns, sorted, total)
	checkUpdates(report, byID, sorted)
	checkSums(report, sorted, total)
	return report
}

// checkTimestamps looks at all timestamps in the order of their answers.
func checkTimestamps(report *Report, txns []*Txn) {
	type event struct {
		at    uint64
		isGot bool
		stamp Stamp
		id    string
	}
	var events []event
	for _, txn := range txns {
		for _, stamp := range []Stamp{txn.Start, txn.Commit} {
			if stamp.TS != 0 {
				events = append(events, event{stamp.Asked, false, stamp, txn.ID}, event{stamp.Got, true, stamp, txn.ID})
				report.Timestamps++
			}
		}
		if txn.Commit.TS != 0 && txn.Commit.TS <= txn.Start.TS {
			report.find(CommitNotAfterStart, "%s started at %d and committed at %d", txn.ID, txn.Start.TS, txn.Commit.TS)
		}
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	givenTo := map[uint64]string{}
	// floors has the highest answer before each question that waits for its answer.
	floors := map[uint64]uint64{}
	var highest uint64
	for _, one := range events {
		if !one.isGot {
			floors[one.stamp.Asked] = highest
			continue
		}
		if floor := floors[one.stamp.Asked]; one.stamp.TS <= floor {
			report.find(OutOfOrder, "%s got %d after %d had been given", one.id, one.stamp.TS, floor)
		}
		delete(floors, one.stamp.Asked)
		if other, isGiven := givenTo[one.stamp.TS]; isGiven {
			report.find(Reused, "%d was given to %s and to %s", one.stamp.TS, other, one.id)
		}
		givenTo[one.stamp.TS] = one.id
		highest = max(highest, one.stamp.TS)
	}
}

// checkWrites finds for each transaction all or none of its writes in the store.
func checkWrites(report *Report, txns []*Txn, byID map[string]*Txn, store Versions) {
	found := map[string]map[string]Version{}
	for account, versions := range store {
		for _, version := range versions {
			report.Versions++
			if byID[version.Writer] == nil {
				report.find(Torn, "%s has a version of %q, which no client recorded", account, version.Writer)
				continue
			}
			if found[version.Writer] == nil {
				found[version.Writer] = map[string]Version{}
			}
			found[version.Writer][account] = version
		}
	}
	for _, txn := range txns {
		has := found[txn.ID]
		switch {
		case txn.Outcome == Committed && len(has) != len(txn.Writes), len(has) != 0 && len(has) != len(txn.Writes):
			report.find(Torn, "the store has %d of %d writes of %s (%s)", len(has), len(txn.Writes), txn.ID, txn.Outcome)
		case (txn.Outcome == Aborted || txn.Outcome == OnlyRead) && len(has) != 0:
			report.find(Torn, "the store has the writes of %s, which is %s", txn.ID, txn.Outcome)
		}
		for account, version := range has {
			if balance, isWritten := txn.Writes[account]; !isWritten || balance != version.Balance {
				report.find(Torn, "%s has %d of %s, which wrote %d", account, version.Balance, txn.ID, balance)
			}
			if txn.Commit.TS != version.TS {
				report.find(Torn, "%s has %s at %d, and it committed at %d", account, txn.ID, version.TS, txn.Commit.TS)
			}
		}
	}
}

// newest returns the newest version at or below a timestamp.
func newest(versions []Version, ts uint64) (Version, bool) {
	at, isExact := slices.BinarySearchFunc(versions, ts, func(v Version, ts uint64) int {
		return cmp.Compare(v.TS, ts)
	})
	if isExact {
		return versions[at], true
	}
	if at == 0 {
		return Version{}, false
	}
	return versions[at-1], true
}

func checkReads(report *Report, txns []*Txn, store Versions, total int64) {
	for _, txn := range txns {
		var sum int64
		for account, read := range txn.Reads {
			report.Reads++
			sum += read.Balance
			right, exists := newest(store[account], txn.Start.TS)
			if !exists || right.Value != read {
				report.find(WrongRead, "%s read %s at %d and saw %d of %q; the newest version at or below is %d of %q at %d",
					txn.ID, account, txn.Start.TS, read.Balance, read.Writer, right.Balance, right.Writer, right.TS)
			}
		}
		if len(txn.Reads) == len(store) && len(store) != 0 {
			report.Sums++
			if sum != total {
				report.find(Total, "%s read all accounts at %d: %d, not %d", txn.ID, txn.Start.TS, sum, total)
			}
		}
	}
}

// checkUpdates holds the rule that the first committer wins.
func checkUpdates(report *Report, byID map[string]*Txn, store Versions) {
	for account, versions := range store {
		for at := 1; at < len(versions); at++ {
			before, version := versions[at-1], versions[at]
			if txn := byID[version.Writer]; txn != nil && txn.Start.TS < before.TS {
				report.find(LostUpdate, "%s replaced %s of %s at %d, but started at %d",
					version.Writer, account, before.Writer, before.TS, txn.Start.TS)
			}
		}
	}
}

// checkSums adds up all accounts at each commit timestamp.
func checkSums(report *Report, store Versions, total int64) {
	type change struct {
		ts uint64
		by int64
	}
	var changes []change
	for _, versions := range store {
		var last int64
		for _, version := range versions {
			changes = append(changes, change{version.TS, version.Balance - last})
			last = version.Balance
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.ts, b.ts) })
	var sum int64
	for at, one := range changes {
		sum += one.by
		if at+1 < len(changes) && changes[at+1].ts == one.ts {
			continue
		}
		report.Sums++
		if sum != total {
			report.find(Total, "at %d the accounts have %d, not %d", one.ts, sum, total)
		}
	}
	if len(changes) == 0 {
		report.find(Total, "the store is empty")
	}
}

// String is the report's last lines for people.
func (r *Report) String() string {
	text := fmt.Sprintf("checked    %d timestamps, %d reads, %d versions, %d sums over all accounts\n",
		r.Timestamps, r.Reads, r.Versions, r.Sums)
	if len(r.Counts) == 0 {
		return text + "verdict    no anomaly\n"
	}
	for _, one := range r.Findings {
		text += fmt.Sprintf("%-10s %s\n", one.Rule, one.Text)
	}
	text += "verdict   "
	for _, rule := range slices.Sorted(maps.Keys(r.Counts)) {
		text += fmt.Sprintf(" %s %d times", rule, r.Counts[rule])
	}
	return text + "\n"
}
