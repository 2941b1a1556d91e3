package control

import (
	"sync/atomic"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/rankset"
)

// Shared is the Transport of ranks that map each other's pages. Pages are by rank, nil where the
// rank does not reach one.
func Shared(pages [][]byte) Transport {
	s := make(shared, len(pages))
	for r, mem := range pages {
		if mem != nil {
			s[r] = pageAt(mem)
		}
	}
	return s
}

type shared []*page

// ballot is the last decision, on rank 0's page, and the sets of decisions of a rank's own.
type ballot struct {
	rosters [2]rankset.Shared
	decided atomic.Uint64 // the generation, the leader in 16 bits, and which of the leader's rosters
}

const (
	rosterBits = 1
	leaderBits = 16
)

const _ = uint(1<<leaderBits - rankset.Max)

func (s shared) Publish(Part) {}

func (s shared) Abort(peers rankset.Set, f channel.Fault) {
	for p := range peers.All() {
		s[p].fault.Abort(f)
	}
}

// Decides is true: the word of the decision outlives all ranks.
func (s shared) Decides(rankset.Set) bool { return true }

func (s shared) Decision() Decision {
	if s[0] == nil {
		return Decision{} // this rank has yet to connect
	}
	for {
		// The leader does not change a roster while the word names it.
		w := s[0].ballot.decided.Load()
		leader := leaderOf(w)
		out := s[leader].ballot.rosters[w&1].Load()
		if s[0].ballot.decided.Load() == w {
			return Decision{Generation: generationOf(w), Leader: leader, Out: out}
		}
	}
}

func (s shared) Decide(last uint64, next Decision) {
	w := s[0].ballot.decided.Load()
	if generationOf(w) != last {
		return
	}
	roster := uint64(0)
	if leaderOf(w) == next.Leader {
		roster = 1 - w&1
	}
	s[next.Leader].ballot.rosters[roster].Store(next.Out)
	s[0].ballot.decided.CompareAndSwap(w, next.Generation<<(leaderBits+rosterBits)|uint64(next.Leader)<<rosterBits|roster)
}

func generationOf(word uint64) uint64 { return word >> (leaderBits + rosterBits) }

func leaderOf(word uint64) int { return int(word >> rosterBits & (1<<leaderBits - 1)) }
