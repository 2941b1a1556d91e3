package measure

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Summary condenses the timings of one operation. Times are of the slowest rank of
// each iteration.
type Summary struct {
	Iterations int
	P50, P99   time.Duration
	Min, Max   time.Duration
	Mean       time.Duration
	Slowest    int     // the rank that was the slowest most often
	Share      float64 // of the iterations in which it was, 0 to 1
}

// Summarize condenses timings indexed by rank and iteration. Every rank must have
// the same number of iterations, at least one.
func Summarize(byRank [][]time.Duration) (Summary, error) {
	if len(byRank) == 0 || len(byRank[0]) == 0 {
		return Summary{}, fmt.Errorf("no timings")
	}
	n := len(byRank[0])
	for r, times := range byRank {
		if len(times) != n {
			return Summary{}, fmt.Errorf("rank %d timed %d iterations, rank 0 timed %d", r, len(times), n)
		}
	}
	worst := make([]time.Duration, n)
	blame := make([]int, len(byRank))
	var sum time.Duration
	for i := range worst {
		slowest := 0
		for r := range byRank {
			if byRank[r][i] > byRank[slowest][i] {
				slowest = r
			}
		}
		blame[slowest]++
		worst[i] = byRank[slowest][i]
		sum += worst[i]
	}
	slices.Sort(worst)
	s := Summary{
		Iterations: n,
		P50:        Percentile(worst, 50), P99: Percentile(worst, 99),
		Min: worst[0], Max: worst[n-1], Mean: sum / time.Duration(n),
	}
	for r, b := range blame {
		if b > blame[s.Slowest] {
			s.Slowest = r
		}
	}
	s.Share = float64(blame[s.Slowest]) / float64(n)
	return s, nil
}

// Percentile is the nearest-rank percentile p, in (0, 100], of ascending times: the
// smallest of them that at least p percent do not exceed.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	i := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Micros is d in microseconds.
func Micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
