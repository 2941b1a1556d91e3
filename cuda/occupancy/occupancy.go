// Package occupancy computes how many blocks of kernels that wait for each other fit on a GPU at
// the same time.
//
// A kernel that waits for its peers must have all its blocks resident on every rank: else two such
// kernels that start in different order on two ranks could starve each other. So the blocks of all
// kernels that may run at the same time must fit, in any order of starts and wherever the GPU
// places blocks. The package is arithmetic alone; package engine/gpu keeps the accounts.
//
// # The rule
//
// A block counts for a number of threads of 64 registers each, its cost; an SM has registers for
// [SMThreads] of them. A block that needs more registers, or shared memory, costs as many threads
// as it keeps others from using ([GPU.Cost]).
//
// A block of n threads fits unless every SM already holds more than SMThreads-n threads. One SM can
// be taken by one block of so many threads or by several smaller ones. Therefore the block fits if
// the large blocks, and the small ones counted as one for each SMThreads-n+1 threads, are fewer
// than the SMs.
//
// If all blocks have one size the check is a count: SMs x (SMThreads / n). The count, and not the
// sum of threads, decides, because a GPU spreads small blocks over all SMs, where each one keeps
// out a large one.
package occupancy

import (
	"cmp"
	"sort"
)

// SMThreads is how many threads of 64 registers an SM has registers for.
const SMThreads = 1024

// GPU describes a GPU.
type GPU struct {
	SMs    int
	Blocks int // that an SM holds at most; 0: 32
}

// Claim is room for the blocks of kernels that never run at the same time.
type Claim struct {
	Cost   int // threads that a block counts for: GPU.Cost
	Blocks int
	// Serial names a serial group: claims whose kernels never run at the same time. nil: none.
	// Values are compared with ==.
	Serial any
}

// concurrent reports whether kernels of the two claims may run at the same time.
func (c Claim) concurrent(o Claim) bool { return c.Serial == nil || c.Serial != o.Serial }

// Cost is the number of threads that a block counts for: whole warps, and at least its share of the
// blocks that an SM can hold.
func (g GPU) Cost(threads int) int {
	const warp = 32
	blocks := cmp.Or(g.Blocks, 32)
	return max((threads+warp-1)/warp*warp, (SMThreads+blocks-1)/blocks)
}

// Room is the most blocks of a cost that fit beside the held claims, in a serial group or (nil) in
// none.
func (g GPU) Room(held []Claim, cost int, serial any) int {
	most := g.SMs * (SMThreads / cost)
	held = held[:len(held):len(held)]
	return sort.Search(most, func(n int) bool { return !g.fit(append(held, Claim{cost, n + 1, serial})) })
}

// fit reports whether all claims find room in any order, whichever of a serial group's kernels run.
func (g GPU) fit(all []Claim) bool {
	for i, c := range all {
		groups := map[any][]Claim{} // of claims that run beside c: one claim of each group at a time
		for j, o := range all {
			switch {
			case j == i || !c.concurrent(o):
			case o.Serial == nil:
				groups[j] = []Claim{o}
			default:
				key := serialKey{o.Serial}
				groups[key] = append(groups[key], o)
			}
		}
		if !g.fitBeside(c, groups) {
			return false
		}
	}
	return true
}

// serialKey keeps the callers' group names apart from indexes.
type serialKey struct{ of any }

// fitBeside reports whether the last block of a new claim finds room beside any set of the others.
func (g GPU) fitBeside(c Claim, groups map[any][]Claim) bool {
	enough := SMThreads - c.Cost + 1 // threads of others that keep the block off an SM
	obstacle := func(o Claim, blocks int) int { return blocks * min(o.Cost, enough) }
	// sameSize is the number of blocks if everything that runs has c's size, and worst is the
	// largest obstacle. Where at least one claim of another size runs, the obstacle is smaller than
	// worst by least or more.
	canBeSame, sameSize := true, c.Blocks
	worst, least := obstacle(c, c.Blocks-1), -1
	for _, group := range groups {
		same, most, other := 0, 0, -1
		for _, o := range group {
			n := obstacle(o, o.Blocks)
			most = max(most, n)
			if o.Cost == c.Cost {
				same = max(same, o.Blocks)
			} else {
				other = max(other, n)
			}
		}
		canBeSame, sameSize, worst = canBeSame && same > 0, sameSize+same, worst+most
		if other >= 0 && (least < 0 || most-other < least) {
			least = most - other
		}
	}
	if canBeSame && sameSize > g.SMs*(SMThreads/c.Cost) {
		return false
	}
	return least < 0 || (worst-least)/enough < g.SMs
}
