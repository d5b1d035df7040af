package main

import "testing"

// Go and Rust clients must choose the same store for a row. The test of the Rust client has the
// same numbers.
func TestRowsAreSpreadAsInEveryLanguage(t *testing.T) {
	for row, want := range map[string]int{"": 261, "account/0": 963, "account/39": 237, "duty/1/0": 830} {
		if got := storeOf(row, 1000); got != want {
			t.Errorf("storeOf(%q) = %d, not %d", row, got, want)
		}
	}
}
