package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// answer is a call that has succeeded: when it began and ended, and its timestamps, consecutive ones.
type answer struct {
	by          string
	began, over time.Duration
	first       uint64
	count       uint64
}

// disorder returns what is wrong with these answers: a timestamp that two of them have, or a later
// call with a lower timestamp. One clock has measured all times.
func disorder(answers []answer) []string {
	const most = 10
	var found []string
	byValue := slices.Clone(answers)
	slices.SortFunc(byValue, func(a, b answer) int { return cmp.Compare(a.first, b.first) })
	for at := range len(byValue) - 1 {
		one, next := byValue[at], byValue[at+1]
		if one.first+one.count > next.first && len(found) < most {
			found = append(found, fmt.Sprintf("twice: %d to %s, and to %s", next.first, one.by, next.by))
		}
	}
	byStart, byEnd := slices.Clone(answers), slices.Clone(answers)
	slices.SortFunc(byStart, func(a, b answer) int { return cmp.Compare(a.began, b.began) })
	slices.SortFunc(byEnd, func(a, b answer) int { return cmp.Compare(a.over, b.over) })
	highest, ended := answer{}, 0
	for _, one := range byStart {
		for ; byEnd[ended].over < one.began; ended++ {
			if last := byEnd[ended]; last.first+last.count > highest.first+highest.count {
				highest = last
			}
		}
		if one.first < highest.first+highest.count && len(found) < most {
			found = append(found, fmt.Sprintf("order: %s got %d at %v, after %s had %d at %v",
				one.by, one.first, one.began, highest.by, highest.first+highest.count-1, highest.over))
		}
	}
	return found
}
