package bench

import (
	"fmt"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// Merge makes records of the ranks' measurements: a copy of base for each operation, with times,
// bytes and verdict filled in. speed is the result of a Copier, or 0. The problems that ranks met
// are returned beside.
func Merge(base measure.Record, byRank [][]timing.Series, speed float64) (records []measure.Record, problems []string,
	err error,
) {
	for i := range byRank[0] {
		rec := base
		rec.Op, rec.Verified = byRank[0][i].Op, true
		if c := byRank[0][i].Collective; c != nil {
			rec.Collective = new(*c)
		}
		rec.Ranks = len(byRank)
		var times [][]time.Duration
		var wire, logical, deepep, moved float64
		for r, series := range byRank {
			s := series[i]
			if s.Op != rec.Op {
				return nil, nil, fmt.Errorf("rank %d measured %s where rank 0 measured %s", r, s.Op, rec.Op)
			}
			times = append(times, s.Durations())
			wire, logical, deepep, moved = wire+s.Wire, logical+s.Logical, deepep+s.DeepEP, moved+s.Moved
			rec.Memory = max(rec.Memory, s.Memory)
			if rec.Collective != nil {
				rec.Wrong += s.Wrong
			}
			if s.Problem != "" {
				rec.Verified = false
				problems = append(problems, fmt.Sprintf("rank %d: %s", r, s.Problem))
			}
		}
		n := float64(len(byRank))
		rec.WireBytes, rec.LogicalBytes, rec.DeepEPBytes = int64(wire/n), int64(logical/n), int64(deepep/n)
		rec.MovedBytes = int64(moved)
		if speed > 0 {
			rec.Floor = moved / speed * 1e6
		}
		sum, err := measure.Summarize(times)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", rec.Op, err)
		}
		rec.SetTimes(sum)
		records = append(records, rec)
	}
	return records, problems, nil
}
