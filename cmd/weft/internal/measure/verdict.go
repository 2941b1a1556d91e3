package measure

import (
	"fmt"
	"slices"
)

// Verdict says in a few lines what records of one run amount to: whether their outputs were right, and how fast
// operations were.
func Verdict(records []Record) []string {
	if len(records) == 0 {
		return nil
	}
	of := Count(len(records), "row")
	lines := []string{fmt.Sprintf("output: %d of %s verified in this run", len(records), of)}
	if n := len(slices.DeleteFunc(slices.Clone(records), func(r Record) bool { return r.Verified })); n > 0 {
		lines[0] = fmt.Sprintf("output: WRONG in %d of %s", n, of)
	}
	lines = append(lines, roundTrips(records)...)
	return append(lines, busBandwidths(records)...)
}

// roundTrips are the times of dispatch and combine together, with the fewest tokens and the most.
func roundTrips(records []Record) (lines []string) {
	type trip struct {
		shape            Record // what rows of one trip have in common
		p50, floor       float64
		dispatch, answer bool
	}
	var trips []*trip
	for i := range records {
		r := &records[i]
		if r.Op != "dispatch" && r.Op != "combine" {
			continue
		}
		shape := Record{
			Engine: r.Engine, Ranks: r.Ranks, Tokens: r.Tokens, Hidden: r.Hidden, TopK: r.TopK, Experts: r.Experts,
			DType: r.DType, Layout: r.Layout, Reduction: r.Reduction,
		}
		at := slices.IndexFunc(trips, func(t *trip) bool { return t.shape == shape })
		if at < 0 {
			at, trips = len(trips), append(trips, &trip{shape: shape})
		}
		t := trips[at]
		t.p50, t.floor = t.p50+r.P50, t.floor+r.Floor
		t.dispatch, t.answer = t.dispatch || r.Op == "dispatch", t.answer || r.Op == "combine"
	}
	trips = slices.DeleteFunc(trips, func(t *trip) bool { return !t.dispatch || !t.answer || t.p50 <= 0 })
	for len(trips) > 0 {
		few, many := trips[0], trips[0]
		kind := trips[0].shape
		kind.Tokens = 0
		trips = slices.DeleteFunc(trips, func(t *trip) bool {
			alike := t.shape
			if alike.Tokens = 0; alike != kind {
				return false
			}
			if t.shape.Tokens < few.shape.Tokens {
				few = t
			}
			if t.shape.Tokens > many.shape.Tokens {
				many = t
			}
			return true
		})
		line := fmt.Sprintf("speed: on %s dispatch and combine take %s us for %s", Count(kind.Ranks, "rank"),
			Number(few.p50), Count(few.shape.Tokens, "token"))
		if many != few {
			line += fmt.Sprintf(" and %s us for %d", Number(many.p50), many.shape.Tokens)
		}
		if many.floor > 0 {
			ratio := many.floor / many.p50
			line += fmt.Sprintf(": a ratio of %s, where 1 is memcpy's speed for the same bytes", Number(ratio))
			if ratio > 1 {
				line += " in cold memory, and more means that rows are in caches"
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// busBandwidths are those that nccl-tests prints last: the mean over sizes, of each operation.
func busBandwidths(records []Record) (lines []string) {
	type sum struct {
		of  Record
		bw  float64
		n   int
		max float64
	}
	var sums []*sum
	for i := range records {
		r := &records[i]
		if r.Collective == nil || r.Bytes == 0 {
			continue
		}
		of := Record{Op: r.Op, Engine: r.Engine, Ranks: r.Ranks}
		at := slices.IndexFunc(sums, func(s *sum) bool { return s.of == of })
		if at < 0 {
			at, sums = len(sums), append(sums, &sum{of: of})
		}
		s := sums[at]
		s.bw, s.n, s.max = s.bw+r.BusBW, s.n+1, max(s.max, r.BusBW)
	}
	for _, s := range sums {
		lines = append(lines, fmt.Sprintf("average bus bandwidth: %s GB/s of %s on %s (%s), at most %s",
			Number(s.bw/float64(s.n)), s.of.Op, Count(s.of.Ranks, "rank"), s.of.Engine, Number(s.max)))
	}
	return lines
}
