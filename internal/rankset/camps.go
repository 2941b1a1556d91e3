package rankset

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Camps are ranks by what they give, where all were to give the same: for errors, which name the ranks that differ from
// most, and never those. The camp of more than half of the ranks is the last. Where there is none, none is right.
type Camps[T comparable] []Camp[T]

// Camp is the ranks that give one value, ascending.
type Camp[T comparable] struct {
	Value T
	Ranks []int
}

// CampsOf puts ranks together that give the same. Ranks come in ascending order.
func CampsOf[T comparable](given iter.Seq2[int, T]) (c Camps[T]) {
	at := map[T]int{}
	for r, v := range given {
		i, known := at[v]
		if !known {
			i = len(c)
			at[v], c = i, append(c, Camp[T]{Value: v})
		}
		c[i].Ranks = append(c[i].Ranks, r)
	}
	if most, ok := c.most(); ok {
		camp := c[most]
		c = append(slices.Delete(c, most, most+1), camp)
	}
	return c
}

// most is the place of the camp of more than half of the ranks, if there is one.
func (c Camps[T]) most() (at int, ok bool) {
	all := 0
	for i := range c {
		if all += len(c[i].Ranks); len(c[i].Ranks) > len(c[at].Ranks) {
			at = i
		}
	}
	return at, all > 0 && 2*len(c[at].Ranks) > all
}

// Differ reports whether there are several.
func (c Camps[T]) Differ() bool { return len(c) > 1 }

// Culprit is the lowest rank that differs from most, or -1 where most do not agree, or all do.
func (c Camps[T]) Culprit() int {
	if _, ok := c.most(); !ok || !c.Differ() {
		return -1
	}
	culprit := c[0].Ranks[0]
	for _, camp := range c[1 : len(c)-1] {
		culprit = min(culprit, camp.Ranks[0])
	}
	return culprit
}

// mostNamed is how many camps an error names.
const mostNamed = 4

// Say joins what each camp gives, in the words of say, which gets the camp's ranks as [Names] has them. Of many camps
// it says the first and the last.
func (c Camps[T]) Say(say func(ranks string, v T) string) string {
	parts := make([]string, 0, mostNamed+1)
	others := 0
	for i, camp := range c {
		if i >= mostNamed-1 && i < len(c)-1 {
			others += len(camp.Ranks)
			continue
		}
		if others > 0 {
			parts = append(parts, fmt.Sprintf("%d more ranks otherwise", others))
		}
		parts = append(parts, say(Names(camp.Ranks), camp.Value))
	}
	return strings.Join(parts, ", ")
}

// On is [Camps.Say] for values of something: "16 on rank 2, 8 on ranks 0-1".
func (c Camps[T]) On(say func(v T) string) string {
	return c.Say(func(ranks string, v T) string { return say(v) + " on " + ranks })
}

// Calling is [Camps.Say] for what ranks do: "rank 2 calls barrier, ranks 0-1 all-gather". Of several ranks the verb has
// no s.
func (c Camps[T]) Calling(verb string, say func(v T) string) string {
	return c.Say(func(ranks string, v T) string {
		do := ""
		switch {
		case v != c[0].Value:
		case len(c[0].Ranks) > 1:
			do = strings.TrimSuffix(verb, "s") + " "
		default:
			do = verb + " "
		}
		return ranks + " " + do + say(v)
	})
}

// Names names ranks: "rank 2", "ranks 3, 5-7".
func Names(ranks []int) string {
	var b strings.Builder
	b.WriteString("rank")
	if len(ranks) != 1 {
		b.WriteByte('s')
	}
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		if b.Len() > 120 {
			fmt.Fprintf(&b, " and %d more", len(ranks)-i)
			break
		}
		if fmt.Fprintf(&b, " %d", ranks[i]); j > i {
			fmt.Fprintf(&b, "-%d", ranks[j])
		}
		i = j + 1
	}
	return b.String()
}

// Regroup are the camps of the same ranks by something that their values have.
func Regroup[T, U comparable](c Camps[T], of func(v T) U) Camps[U] {
	given := map[int]U{}
	var ranks []int
	for _, camp := range c {
		ranks = append(ranks, camp.Ranks...)
		for _, r := range camp.Ranks {
			given[r] = of(camp.Value)
		}
	}
	slices.Sort(ranks)
	return CampsOf(func(yield func(int, U) bool) {
		for _, r := range ranks {
			if !yield(r, given[r]) {
				return
			}
		}
	})
}
