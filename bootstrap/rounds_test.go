package bootstrap

import (
	"fmt"
	"sync"
	"testing"
)

// passed is a message of a collective as the rank at one end of it saw it.
type passed struct {
	Sent bool // else taken
	Peer int
	Seq  uint64
}

// messageLog keeps what a rank's tracer hears, in order.
type messageLog struct {
	mu     sync.Mutex
	passed []passed
}

func (l *messageLog) add(sent bool, peer int, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passed = append(l.passed, passed{sent, peer, seq})
}

func listed(logs []messageLog) [][]passed {
	lists := make([][]passed, len(logs))
	for r := range logs {
		logs[r].mu.Lock()
		lists[r] = logs[r].passed
		logs[r].mu.Unlock()
	}
	return lists
}

// countRounds replays the logs of all ranks, and returns how many rounds of messages each rank took
// part in, by collective. The round of a message is one more than the last round that its sender
// had heard of when it sent it. So the last round is the longest chain of messages that had to pass
// one after the other; messages that wait for nothing new share a round, however many there are.
func countRounds(logs [][]passed) ([]map[uint64]int, error) {
	type way struct {
		from, to int
		seq      uint64
	}
	underWay := make(map[way][]int)            // rounds of messages that were sent and not taken yet
	heard := make([]map[uint64]int, len(logs)) // last round that a rank has a message of
	last := make([]map[uint64]int, len(logs))  // last round that a rank took part in
	for r := range logs {
		heard[r], last[r] = make(map[uint64]int), make(map[uint64]int)
	}
	next := make([]int, len(logs))
	for progress := true; progress; {
		progress = false
		for r, log := range logs {
			for ; next[r] < len(log); next[r]++ {
				p := log[next[r]]
				if p.Sent {
					w, round := way{r, p.Peer, p.Seq}, heard[r][p.Seq]+1
					underWay[w] = append(underWay[w], round)
					last[r][p.Seq] = max(last[r][p.Seq], round)
				} else {
					w := way{p.Peer, r, p.Seq}
					if len(underWay[w]) == 0 {
						break // until its sender has been replayed that far
					}
					heard[r][p.Seq] = max(heard[r][p.Seq], underWay[w][0])
					last[r][p.Seq] = max(last[r][p.Seq], heard[r][p.Seq])
					underWay[w] = underWay[w][1:]
				}
				progress = true
			}
		}
	}
	for r, log := range logs {
		if next[r] < len(log) {
			return nil, fmt.Errorf("rank %d took %+v, which was not sent", r, log[next[r]])
		}
	}
	for w, rounds := range underWay {
		if len(rounds) > 0 {
			return nil, fmt.Errorf("%d messages were sent and not taken: %+v", len(rounds), w)
		}
	}
	return last, nil
}

// checkRounds checks that each of the collectives took every rank two rounds, however many ranks
// there are: one towards rank 0, one back.
func checkRounds(t testing.TB, logs [][]passed, collectives int) {
	t.Helper()
	counts, err := countRounds(logs)
	if err != nil {
		t.Fatal(err)
	}
	for r, rounds := range counts {
		if len(rounds) != collectives {
			t.Errorf("rank %d took part in %d collectives, want %d", r, len(rounds), collectives)
		}
		for seq, n := range rounds {
			if n != 2 {
				t.Errorf("rank %d took part in %d rounds of collective %d, want 2", r, n, seq)
			}
		}
	}
}

// TestCountRounds counts other ways to tell all ranks something than the one in use.
func TestCountRounds(t *testing.T) {
	const size = 64
	tests := []struct {
		name string
		send func(pass func(from, to int))
		want int
	}{
		{"star", func(pass func(from, to int)) {
			for r := 1; r < size; r++ {
				pass(r, 0)
			}
			for r := 1; r < size; r++ {
				pass(0, r)
			}
		}, 2},
		{"one by one", func(pass func(from, to int)) {
			for r := 1; r < size; r++ {
				pass(0, r)
				pass(r, 0)
			}
		}, 2 * (size - 1)},
		{"chain", func(pass func(from, to int)) {
			for r := 1; r < size; r++ {
				pass(r-1, r)
			}
		}, size - 1},
		{"tree", func(pass func(from, to int)) {
			for reach := 1; reach < size; reach *= 2 {
				for r := range reach {
					pass(r, r+reach)
				}
			}
		}, 6},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			logs := make([]messageLog, size)
			test.send(func(from, to int) {
				logs[from].add(true, to, 0)
				logs[to].add(false, from, 0)
			})
			counts, err := countRounds(listed(logs))
			if err != nil {
				t.Fatal(err)
			}
			most := 0
			for _, rounds := range counts {
				most = max(most, rounds[0])
			}
			if most != test.want {
				t.Errorf("%d rounds, want %d", most, test.want)
			}
		})
	}
	if _, err := countRounds([][]passed{{{Peer: 1}}, nil}); err == nil {
		t.Error("a message that was taken and not sent")
	}
	if _, err := countRounds([][]passed{{{Sent: true, Peer: 1}}, nil}); err == nil {
		t.Error("a message that was sent and not taken")
	}
}
