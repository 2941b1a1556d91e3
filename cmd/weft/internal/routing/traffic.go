package routing

// Traffic counts the rows that a routing moves. Multiplied by the bytes of a row it gives the byte
// counts that benchmarks quote, which differ several-fold:
//
//   - Selections is DeepEP's low-latency convention: every (token, expert) pair;
//   - RankRows is the logical traffic: a token counts once for each rank it visits,
//     its own included;
//   - RemoteSelections and RemoteRankRows leave out rows that stay on their rank: they count the
//     rows that cross a link when a row is sent per selection, or once per rank.
type Traffic struct {
	Tokens           int // with at least one expert
	Selections       int
	RemoteSelections int
	RankRows         int
	RemoteRankRows   int
}

// Count counts the traffic of one rank's routing: ids is tokens rows of topK expert
// ids, where a negative one is no expert. expertsPerRank must be positive.
func Count(ids []int32, topK, rank, expertsPerRank int) Traffic {
	var t Traffic
	visited := make([]int, topK)
	for ; len(ids) >= topK && topK > 0; ids = ids[topK:] {
		n := 0
		for _, e := range ids[:topK] {
			if e < 0 {
				continue
			}
			to := int(e) / expertsPerRank
			t.Selections++
			if to != rank {
				t.RemoteSelections++
			}
			again := false
			for _, v := range visited[:n] {
				again = again || v == to
			}
			if again {
				continue
			}
			visited[n] = to
			n++
			t.RankRows++
			if to != rank {
				t.RemoteRankRows++
			}
		}
		if n > 0 {
			t.Tokens++
		}
	}
	return t
}

// Add sums the traffic of two ranks.
func (t Traffic) Add(u Traffic) Traffic {
	t.Tokens += u.Tokens
	t.Selections += u.Selections
	t.RemoteSelections += u.RemoteSelections
	t.RankRows += u.RankRows
	t.RemoteRankRows += u.RemoteRankRows
	return t
}
