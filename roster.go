package weft

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"weak"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/relay"
)

// roster is what the ranks of a communicator have told of themselves when they joined, and what
// follows from that alike on every rank. The ranks of a process share it, and change nothing in it.
type roster struct {
	sum       [sha256.Size]byte // of the notes
	peers     []peerInfo
	hosts     []int // by rank; ranks of one host share memory
	processes []relay.Process
	processOf []int // by rank
}

// exchangePeerInfo tells the other ranks of this one, and returns what all have told.
func exchangePeerInfo(ctx context.Context, b bootstrap.Bootstrap, own peerInfo) (*roster, error) {
	own.cpus = channel.Affinity()
	note, err := own.append(nil)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	all, err := b.AllGather(ctx, note)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	return rosterOf(all)
}

// rosters are those of this process's communicators, as long as they are used.
var rosters = struct {
	sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[roster]
}{known: map[[sha256.Size]byte]weak.Pointer[roster]{}}

// rosterOf makes a roster of the ranks' notes, or finds the one that another rank of this process has made.
func rosterOf(notes [][]byte) (*roster, error) {
	h := sha256.New()
	for _, n := range notes {
		h.Write(n)
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	rosters.Lock()
	defer rosters.Unlock()
	if r := rosters.known[sum].Value(); r != nil {
		return r, nil
	}
	r := &roster{sum: sum, peers: make([]peerInfo, len(notes))}
	for rank, raw := range notes {
		var err error
		if r.peers[rank], err = parsePeerInfo(raw); err != nil {
			return nil, &PeerError{Rank: rank, Op: "join", Err: err}
		}
	}
	r.number()
	for sum, known := range rosters.known {
		if known.Value() == nil {
			delete(rosters.known, sum)
		}
	}
	rosters.known[sum] = weak.Make(r)
	return r, nil
}

// number numbers hosts and processes in the order of their lowest ranks.
func (r *roster) number() {
	type process struct {
		host string
		id   [16]byte
	}
	hosts, processes := map[string]int{}, map[process]int{}
	for rank, p := range r.peers {
		host, ok := hosts[p.address.Host]
		if !ok {
			host = len(hosts)
			hosts[p.address.Host] = host
		}
		key := process{p.address.Host, p.address.Process}
		n, ok := processes[key]
		if !ok {
			n = len(r.processes)
			processes[key], r.processes = n, append(r.processes, relay.Process{Host: host})
		}
		r.processes[n].Ranks = append(r.processes[n].Ranks, rank)
		r.hosts, r.processOf = append(r.hosts, host), append(r.processOf, n)
	}
}

// name is the communicator's in logs, the same on every rank.
func (r *roster) name() string { return hex.EncodeToString(r.sum[:4]) }
