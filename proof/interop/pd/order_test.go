package main

import "testing"

// The judge finds what it is there to find.
func TestDisorderIsFound(t *testing.T) {
	good := []answer{
		{by: "a", began: 0, over: 10, first: 5, count: 3},
		{by: "b", began: 5, over: 30, first: 1, count: 2},
		{by: "c", began: 11, over: 12, first: 8, count: 1},
	}
	if found := disorder(good); len(found) != 0 {
		t.Errorf("found in a good run: %v", found)
	}
	twice := append(good, answer{by: "d", began: 0, over: 40, first: 7, count: 1})
	if found := disorder(twice); len(found) != 1 {
		t.Errorf("a timestamp given twice: %v", found)
	}
	late := append(good, answer{by: "d", began: 13, over: 14, first: 3, count: 1})
	if found := disorder(late); len(found) != 1 {
		t.Errorf("a later call with a lower timestamp: %v", found)
	}
}
