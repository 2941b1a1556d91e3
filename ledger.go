package weft

import (
	"cmp"
	"slices"
	"sort"
	"sync"

	"github.com/weftgo/weft/cuda"
)

// A kernel that waits for its peers must run as a whole on every rank, or two kernels that start in different order on two ranks starve each other.
// So whoever launches such kernels reserves room for them, and what is reserved together fits, whatever starts first and wherever its blocks go.
//
// An SM holds 1024 threads of kernels that use 64 registers each; a block that needs more registers, or shared memory, counts for as many threads as keep others out. A block of n threads that does not find room stands before
// SMs that all hold more than 1024-n threads of other blocks: one that has so many itself, or several smaller ones. So it finds room if there are fewer of
// the former, and of 1025-n threads of the latter, than there are SMs. Blocks of at most one size leave no gaps: each SM holds 1024/n of these at least. It is their
// number that counts then, not what they weigh: a GPU spreads small blocks over all SMs, where each keeps out a large one.

// threadsPerSM is how many threads of 64 registers an SM has registers for.
const threadsPerSM = 1024

// ledgers hold the reservations of this process, by GPU. A GPU of another driver is another, in tests.
var ledgers struct {
	sync.Mutex
	held map[ledgerKey][]*Reservation
}

type ledgerKey struct {
	driver *cuda.Driver
	bus    string
}

// Reservation is room on a GPU for the blocks of kernels that wait for peers.
type Reservation struct {
	key             ledgerKey
	threads, blocks int
}

// Reserve takes room on this rank's GPU for kernels of up to so many blocks of up to so many threads each, at most 64 registers a thread, of which no two
// run at the same time. All communicators of the process draw from the same account. If it does not hold as much the error wraps [ErrUnsupported] and
// says what is left.
func (d *Device) Reserve(threads, blocks int) (*Reservation, error) {
	if threads < 1 || threads > threadsPerSM || blocks < 1 {
		return nil, Invalidf("reserve: %d blocks of %d threads; a block has 1 to %d", blocks, threads, threadsPerSM)
	}
	r := &Reservation{key: d.ledger(), threads: d.weight(threads), blocks: blocks}
	ledgers.Lock()
	defer ledgers.Unlock()
	held := ledgers.held[r.key]
	if room := d.room(held, r.threads); blocks > room {
		taken := 0
		for _, h := range held {
			taken += h.blocks
		}
		return nil, Unsupportedf("reserve: %d blocks of %d threads that wait for peers; GPU %s has room for %d beside the %d that are reserved: ask for "+
			"fewer SMs, or close a handle that is not needed", blocks, threads, d.info.bus, room, taken)
	}
	if ledgers.held == nil {
		ledgers.held = map[ledgerKey][]*Reservation{}
	}
	ledgers.held[r.key] = append(held, r)
	return r, nil
}

// Release gives the room back, when no kernel uses it any more. Further calls do nothing.
func (r *Reservation) Release() {
	ledgers.Lock()
	defer ledgers.Unlock()
	held := slices.DeleteFunc(ledgers.held[r.key], func(o *Reservation) bool { return o == r })
	ledgers.held[r.key] = held
	if len(held) == 0 {
		delete(ledgers.held, r.key)
	}
}

// Room is how many blocks of so many threads can still be reserved; 0 for a number of threads that no block has.
func (d *Device) Room(threads int) int {
	if threads < 1 || threads > threadsPerSM {
		return 0
	}
	ledgers.Lock()
	defer ledgers.Unlock()
	return d.room(ledgers.held[d.ledger()], d.weight(threads))
}

func (d *Device) ledger() ledgerKey { return ledgerKey{d.context.Device().Driver(), d.info.bus} }

// weight is how many threads a block counts for: whole warps, and at least its share of the blocks that an SM can hold.
func (d *Device) weight(threads int) int {
	const warp = 32
	blocks := cmp.Or(d.info.blocks, 32)
	return max((threads+warp-1)/warp*warp, (threadsPerSM+blocks-1)/blocks)
}

// room is the most blocks of a weight that fit beside what is held.
func (d *Device) room(held []*Reservation, weight int) int {
	most := d.info.sms * (threadsPerSM / weight)
	return sort.Search(most, func(n int) bool {
		return !d.fit(append(held[:len(held):len(held)], &Reservation{threads: weight, blocks: n + 1}))
	})
}

// fit says whether all these blocks find room in any order.
func (d *Device) fit(all []*Reservation) bool {
	blocks, uniform := 0, true
	for _, r := range all {
		blocks += r.blocks
		uniform = uniform && r.threads == all[0].threads
	}
	if uniform {
		return blocks <= d.info.sms*(threadsPerSM/all[0].threads)
	}
	for _, r := range all {
		enough := threadsPerSM - r.threads + 1 // to be in the block's way
		large, small := 0, 0                   // blocks that are alone, and threads of those that are together
		for _, o := range all {
			others := o.blocks
			if o == r {
				others--
			}
			if o.threads >= enough {
				large += others
			} else {
				small += others * o.threads
			}
		}
		if large+small/enough >= d.info.sms {
			return false
		}
	}
	return true
}
