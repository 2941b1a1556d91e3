package gpu

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/occupancy"
)

// Want is the room that an owner's kernels need on the GPU of every rank; no two of them run at the
// same time.
type Want struct {
	Op string // the operation, in errors
	// Cost is how many threads of 64 registers a block of the heaviest kernel counts for: [Cost].
	//
	// Room is taken for blocks of that kernel, and each of the others has at most as many. Many
	// light blocks would exclude more heavy ones than they cost, because a GPU spreads them over
	// all SMs.
	Cost int
	SMs  int // SMs that the kernels of all ranks on a GPU may fill; 0: three quarters of the free ones
	// SerialGroup is the number of a serial group: owners whose kernels never run at the same time
	// share room. 0: none.
	SerialGroup int
	// Beside is room that the same owner has for other kernels, which never run at the same time as these:
	// the two share room, as in a serial group. It is released last. nil: none.
	Beside *Room
	Least  int // blocks without which the kernels cannot work
}

// Room is room on the GPU of every rank for the blocks of kernels that wait for peers: the same on
// every rank.
type Room struct {
	Blocks int  // that may be taken
	PerSM  int  // blocks of the wanted cost that an SM holds
	Alone  bool // nothing else can be on any of the GPUs: kernels that are lighter than wanted may have more blocks

	want    Want
	comm    *weft.Comm
	cost    int
	account account
	uuid    cuda.UUID // of the GPU: those of other hosts have the same places on their buses
	claim   *occupancy.Claim
	sharers int // of a GPU: the most ranks on one
}

// warp is by how many threads costs grow.
const warp = 32

// Fit finds the room that all ranks have for the same Want. It is collective, and takes nothing
// yet: Take does. Ranks that share a GPU share its room equally. The free room of a GPU is the room
// that owners of this process have not taken.
func Fit(ctx context.Context, comm *weft.Comm, want Want) (*Room, error) {
	r := &Room{want: want, comm: comm, PerSM: max(1, occupancy.SMThreads/want.Cost)}
	r.cost = max(want.Cost, occupancy.SMThreads/r.PerSM/warp*warp) // a remainder smaller than a block is of no use
	err := r.open()
	if err := comm.Operations().VerifySame(ctx, want.Op, "", err); err != nil {
		return nil, err
	}
	all := comm.Device().SMs() * r.PerSM
	mine, held := r.account.room(r.cost, r.serial()), r.account.held(r.cost, r.serial())
	if want.SMs > 0 {
		mine, held = min(mine, want.SMs*r.PerSM), min(held, want.SMs*r.PerSM)
	} else {
		mine -= mine / 4
	}
	return r, r.share(ctx, mine, held, all)
}

func (r *Room) open() (err error) {
	d := r.comm.Device().Context().Device()
	if r.account.bus, err = d.PCIBusID(); err != nil {
		return err
	}
	if r.uuid, err = d.UUID(); err != nil {
		return err
	}
	r.account.driver = d.Driver()
	if r.account.gpu.SMs, err = d.Multiprocessors(); err != nil {
		return err
	}
	r.account.gpu.Blocks, err = d.Attribute(cuda.BlocksPerMultiprocessor)
	return err
}

// serial is the group that the kernels belong to: the same number on two ranks is two groups. Without a
// number the room is a group by itself, and those beside it.
func (r *Room) serial() any {
	switch {
	case r.want.Beside != nil:
		return r.want.Beside.serial()
	case r.want.SerialGroup == 0:
		return r
	default:
		return serialGroup{r.comm.Device(), r.want.SerialGroup}
	}
}

type serialGroup struct {
	device *weft.Device
	number int
}

// share agrees on the room of all ranks: the least of any rank, where ranks that share a GPU have
// equal shares of it; or the room that all have held for the serial group, if that is more.
func (r *Room) share(ctx context.Context, mine, held, all int) error {
	const numbers = 3 * 4
	note := binary.LittleEndian.AppendUint32(nil, uint32(mine))
	note = binary.LittleEndian.AppendUint32(note, uint32(all))
	note = binary.LittleEndian.AppendUint32(note, uint32(held))
	notes, err := r.comm.Operations().GatherNotes(ctx, r.want.Op, append(note, r.uuid[:]...))
	if err != nil {
		return err
	}
	notes = slices.DeleteFunc(notes, func(n []byte) bool { return n == nil }) // of masked ranks
	sharers := map[string]int{}                                               // by GPU
	for _, n := range notes {
		sharers[string(n[numbers:])]++
	}
	r.Blocks = mine
	for _, n := range notes {
		ranks := sharers[string(n[numbers:])]
		r.Blocks, r.sharers = min(r.Blocks, int(binary.LittleEndian.Uint32(n))/ranks), max(r.sharers, ranks)
		held = min(held, int(binary.LittleEndian.Uint32(n[8:])))
	}
	r.Blocks = max(r.Blocks, held)
	r.Alone = !slices.ContainsFunc(notes,
		func(n []byte) bool { return int(binary.LittleEndian.Uint32(n[4:])) != r.Blocks })
	return nil
}

// Take takes room for so many blocks. It is collective: it fails on all ranks if it fails on one,
// if one passes an error, or if their summaries of the agreement differ.
func (r *Room) Take(ctx context.Context, blocks int, summary string, own error) error {
	op, want := r.want.Op, r.want
	switch {
	case own != nil:
	case want.SMs > 0 && want.SMs*r.PerSM/r.sharers < want.Least:
		own = weft.Unsupportedf("SMs %d: its kernels take %d at least, of %s", want.SMs,
			(want.Least*r.sharers+r.PerSM-1)/r.PerSM, ranksOn(r.sharers))
	case r.Blocks < want.Least:
		own = weft.Unsupportedf("no room for its kernels, which wait for peers, beside those of the handles " +
			"that are there: ask for fewer SMs in " +
			"their Specs, put those that take turns in one serial group, or close one")
	default:
		claim := &occupancy.Claim{Cost: r.account.gpu.Cost(r.cost), Blocks: blocks, Serial: r.serial()}
		if own = r.account.take(claim); own == nil {
			r.claim = claim
		}
	}
	return r.comm.Operations().VerifySame(ctx, op, summary, own)
}

func ranksOn(n int) string {
	if n == 1 {
		return "one rank on a GPU"
	}
	return fmt.Sprintf("%d ranks on a GPU", n)
}

// Release gives the room back when no kernel uses it any more. Further calls do nothing.
func (r *Room) Release() {
	if r != nil && r.claim != nil {
		r.account.release(r.claim)
		r.claim = nil
	}
}

// Cost is how many threads of 64 registers a block of so many threads and bytes of dynamic shared memory counts
// for, of the heaviest of the functions; nil ones are none.
func Cost(threads, shared int, functions ...*cuda.Function) (cost int, err error) {
	cost = threads
	for _, f := range functions {
		if f == nil {
			continue
		}
		n, err := f.Occupancy(threads, shared)
		if err != nil {
			return 0, err
		}
		cost = max(cost, occupancy.SMThreads/max(1, n))
	}
	return cost, nil
}

// account is the room that this process has taken on a GPU, in all its communicators.
type account struct {
	accountKey
	gpu occupancy.GPU
}

// accountKey identifies a GPU; the same GPU of another driver, in tests, is another.
type accountKey struct {
	driver *cuda.Driver
	bus    string
}

var accounts struct {
	sync.Mutex
	claims map[accountKey][]*occupancy.Claim
}

// claims are those of the account. The caller holds the lock.
func (a *account) claims() []occupancy.Claim {
	var all []occupancy.Claim
	for _, c := range accounts.claims[a.accountKey] {
		all = append(all, *c)
	}
	return all
}

// room is the number of blocks that fit beside the taken room.
func (a *account) room(cost int, serial any) int {
	accounts.Lock()
	defer accounts.Unlock()
	return a.gpu.Room(a.claims(), a.gpu.Cost(cost), serial)
}

// held is how many blocks of a cost a serial group has room for because as many of this cost, or of a higher
// one, have been taken in it before.
func (a *account) held(cost int, serial any) (blocks int) {
	if serial == nil {
		return 0
	}
	accounts.Lock()
	defer accounts.Unlock()
	for _, c := range accounts.claims[a.accountKey] {
		if c.Serial == serial && c.Cost >= a.gpu.Cost(cost) {
			blocks = max(blocks, c.Blocks)
		}
	}
	return blocks
}

func (a *account) take(c *occupancy.Claim) error {
	accounts.Lock()
	defer accounts.Unlock()
	claims := a.claims()
	if room := a.gpu.Room(claims, c.Cost, c.Serial); c.Blocks > room {
		taken := 0
		for _, o := range claims {
			if c.Serial == nil || c.Serial != o.Serial {
				taken += o.Blocks
			}
		}
		return weft.Unsupportedf("%d blocks of %d threads that wait for peers; GPU %s has room for %d "+
			"beside the %d that are taken: ask for fewer SMs, "+
			"or close a handle that is not needed", c.Blocks, c.Cost, a.bus, room, taken)
	}
	if accounts.claims == nil {
		accounts.claims = map[accountKey][]*occupancy.Claim{}
	}
	accounts.claims[a.accountKey] = append(accounts.claims[a.accountKey], c)
	return nil
}

func (a *account) release(c *occupancy.Claim) {
	accounts.Lock()
	defer accounts.Unlock()
	rest := slices.DeleteFunc(accounts.claims[a.accountKey], func(o *occupancy.Claim) bool { return o == c })
	if accounts.claims[a.accountKey] = rest; len(rest) == 0 {
		delete(accounts.claims, a.accountKey)
	}
}

// String describes the room.
func (r *Room) String() string { return fmt.Sprintf("%d blocks, %d an SM", r.Blocks, r.PerSM) }
