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
	turns           turns
}

// turns are reservations whose kernels take turns: those of one rank with the same number.
type turns struct {
	device *Device
	number int
}

// together reports whether kernels of two reservations may run at once.
func (r *Reservation) together(o *Reservation) bool { return r.turns.number == 0 || r.turns != o.turns }

// Reserve takes room on this rank's GPU for kernels of up to so many blocks of up to so many threads each, at most 64 registers a thread, of which no two
// run at the same time; nor does one of them with kernels for which this rank has reserved with the same series, if that is not 0. All communicators of the process
// draw from the same account. If it does not hold as much the error wraps [ErrUnsupported] and says what is left.
func (d *Device) Reserve(series, threads, blocks int) (*Reservation, error) {
	if threads < 1 || threads > threadsPerSM || blocks < 1 {
		return nil, Invalidf("reserve: %d blocks of %d threads; a block has 1 to %d", blocks, threads, threadsPerSM)
	}
	r := &Reservation{key: d.ledger(), threads: d.weight(threads), blocks: blocks, turns: turns{d, series}}
	ledgers.Lock()
	defer ledgers.Unlock()
	held := ledgers.held[r.key]
	if room := d.room(held, r.turns, r.threads); blocks > room {
		taken := 0
		for _, h := range held {
			if h.together(r) {
				taken += h.blocks
			}
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

// Room is how many blocks of so many threads can still be reserved with a series; 0 for a number of threads that no block has.
func (d *Device) Room(series, threads int) int {
	if threads < 1 || threads > threadsPerSM {
		return 0
	}
	ledgers.Lock()
	defer ledgers.Unlock()
	return d.room(ledgers.held[d.ledger()], turns{d, series}, d.weight(threads))
}

// Held is how many blocks of so many threads can be reserved with a series, if that is not 0, because as many have been before.
func (d *Device) Held(series, threads int) (blocks int) {
	if series == 0 {
		return 0
	}
	ledgers.Lock()
	defer ledgers.Unlock()
	for _, r := range ledgers.held[d.ledger()] {
		if r.turns == (turns{d, series}) && r.threads == d.weight(threads) {
			blocks = max(blocks, r.blocks)
		}
	}
	return blocks
}

func (d *Device) ledger() ledgerKey { return ledgerKey{d.context.Device().Driver(), d.info.bus} }

// weight is how many threads a block counts for: whole warps, and at least its share of the blocks that an SM can hold.
func (d *Device) weight(threads int) int {
	const warp = 32
	blocks := cmp.Or(d.info.blocks, 32)
	return max((threads+warp-1)/warp*warp, (threadsPerSM+blocks-1)/blocks)
}

// room is the most blocks of a weight that fit beside what is held and does not take turns with them.
func (d *Device) room(held []*Reservation, of turns, weight int) int {
	most := d.info.sms * (threadsPerSM / weight)
	return sort.Search(most, func(n int) bool {
		return !d.fit(append(held[:len(held):len(held)], &Reservation{threads: weight, blocks: n + 1, turns: of}))
	})
}

// fit says whether all these blocks find room in any order, whichever of those that take turns run.
func (d *Device) fit(all []*Reservation) bool {
	for _, r := range all {
		beside := map[any][]*Reservation{} // that run with it, one of each
		for _, o := range all {
			switch {
			case o == r || !o.together(r):
			case o.turns.number == 0:
				beside[o] = []*Reservation{o}
			default:
				beside[o.turns] = append(beside[o.turns], o)
			}
		}
		if !d.fitBeside(r, beside) {
			return false
		}
	}
	return true
}

// fitBeside says whether the last block of a reservation to come finds room, whatever runs beside it.
func (d *Device) fitBeside(r *Reservation, beside map[any][]*Reservation) bool {
	enough := threadsPerSM - r.threads + 1 // threads that are in the block's way
	// A block that is alone is in the way on one SM, and so are as many threads of those that are together.
	way := func(o *Reservation, blocks int) int { return blocks * min(o.threads, enough) }
	// Where all blocks are of one size their number counts, else what is in the way, of those choices in which at least one is of another size: there it is less by
	// `less` than where each is the worst.
	alike, blocks := true, r.blocks
	worst, less := way(r, r.blocks-1), -1
	for _, turns := range beside {
		same, most, other := 0, 0, -1
		for _, o := range turns {
			w := way(o, o.blocks)
			most = max(most, w)
			if o.threads == r.threads {
				same = max(same, o.blocks)
			} else {
				other = max(other, w)
			}
		}
		alike, blocks, worst = alike && same > 0, blocks+same, worst+most
		if other >= 0 && (less < 0 || most-other < less) {
			less = most - other
		}
	}
	if alike && blocks > d.info.sms*(threadsPerSM/r.threads) {
		return false
	}
	return less < 0 || (worst-less)/enough < d.info.sms
}
