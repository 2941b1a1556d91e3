package softnic

import (
	"math/bits"

	"github.com/weftgo/weft/fabric/mlx5"
)

// Queue is a queue pair of a card.
type Queue struct {
	nic    *NIC
	number uint32
	memory Memory
	depth  uint64 // entries
	log    uint   // of completions

	halted, failed, dead, stalled bool

	// Registers, as they were read last: both halves, and how many entries the last ring announced.
	halves [2]uint64
	rung   uint64
	rings  uint64

	// Numbers of entries: announced, read, carried out, and those whose completions were read.
	announced, fetched, executed, freed uint64

	shadow   [][mlx5.EntryBytes]byte // entries as they were read, by slot
	silent   uint64                  // unsignalled entries in a row
	retries  int                     // of the next entry
	drop     int                     // rings to lose
	recovery int                     // steps until the record is looked at, after a lost ring
	faults   map[uint64]Fault

	landing []piece
	steps   uint64

	waiting  []result // completions to be written
	opened   bool     // the first of them is written but for its last word
	produced uint64   // completions written
	taken    uint64   // and read
	covers   []uint64 // how many entries each completion that was not read covers
}

func newQueue(n *NIC, number uint32, m Memory) *Queue {
	depth := len(m.Send) / mlx5.EntryBytes
	return &Queue{
		nic: n, number: number, memory: m, depth: uint64(depth),
		log:    uint(bits.TrailingZeros(uint(len(m.Completions) / mlx5.CompletionBytes))),
		shadow: make([][mlx5.EntryBytes]byte, depth), faults: map[uint64]Fault{},
	}
}

// Executed is how many entries the queue has carried out or flushed.
func (q *Queue) Executed() uint64 {
	q.nic.mu.Lock()
	defer q.nic.mu.Unlock()
	return q.executed
}

// Rings is how often the card saw the register change.
func (q *Queue) Rings() uint64 {
	q.nic.mu.Lock()
	defer q.nic.mu.Unlock()
	return q.rings
}

// step does some of what there is to do: all without a seed, and little with one.
func (q *Queue) step() (some bool) {
	if q.halted {
		return false
	}
	q.steps++
	some = q.doorbells()
	q.consume()
	for !q.halted && !q.stalled && q.executed != q.announced {
		some = true
		if q.nic.chance(4) || !q.execute() {
			break
		}
	}
	some = some || len(q.landing) > 0
	for len(q.landing) > 0 && !q.nic.chance(6) {
		q.land()
	}
	for !q.halted && len(q.waiting) > 0 {
		some = true
		if q.nic.chance(4) || !q.complete() {
			break
		}
	}
	q.compare()
	return some
}

// doorbells looks at the register.
func (q *Queue) doorbells() (some bool) {
	for half := range q.halves {
		at := half * mlx5.RegisterHalf
		if at+8 > len(q.memory.Register) {
			break
		}
		value := word8(q.memory.Register, at).Load()
		if value == q.halves[half] {
			continue
		}
		q.halves[half], some = value, true
		q.rings++
		q.ring(value)
	}
	if q.recovery > 0 {
		some = true
		if q.recovery--; q.recovery == 0 {
			q.announce(q.rung, true)
		}
	}
	return some
}

// ring takes the value of a register.
func (q *Queue) ring(value uint64) {
	next, number := mlx5.ReadRegister(value)
	if number != q.number {
		q.nic.violation(q, "the register names queue pair %#x", number)
		return
	}
	// By completions that were read before the register, whose entries the card may know by the record alone.
	q.consume()
	if ahead := uint64(next - uint16(q.rung)); ahead <= q.reach(q.rung) {
		q.rung += ahead
	} else if len(q.memory.Register) <= mlx5.RegisterHalf || ahead < 1<<16-q.depth {
		// The two halves may be looked at in the wrong order.
		q.nic.violation(q, "the register goes from %#x to %#x", uint16(q.rung), next)
		return
	}
	if q.drop > 0 {
		q.drop--
		q.recovery = 100
		return
	}
	q.announce(q.rung, q.nic.random == nil || q.nic.chance(2))
}

// announce reads the record, and takes over what is there by the record or by the register.
func (q *Queue) announce(rung uint64, byRecord bool) {
	word := mlx5.ReadRecord(word4(q.memory.Record, 4*mlx5.SendRecordAt).Load())
	if word > mlx5.IndexMask {
		q.nic.violation(q, "the record holds %#x", word)
		return
	}
	// By completions that were read after the record, whose writer had read them before it wrote the record.
	q.consume()
	more := uint64(uint16(word) - uint16(rung))
	if more > q.reach(rung) {
		q.nic.violation(q, "the register announces %#x, the record %#x", uint16(rung), word)
		return
	}
	next := rung
	if byRecord {
		next += more
	}
	if rung+more-q.freed > q.depth {
		q.nic.violation(q, "%d entries outstanding; the queue has room for %d", rung+more-q.freed, q.depth)
		return
	}
	q.announced = max(q.announced, next)
	if q.nic.random == nil || q.nic.chance(2) {
		for q.fetched < q.announced && !q.halted {
			q.fetch()
		}
	}
}

// reach is by how much an announcement may go beyond a number: by the queue's depth, and by what is complete beyond
// the number already.
func (q *Queue) reach(rung uint64) uint64 { return max(q.freed, rung) - rung + q.depth }

func (q *Queue) slot(number uint64) []byte {
	return q.memory.Send[number%q.depth*mlx5.EntryBytes:][:mlx5.EntryBytes]
}

// fetch reads the next entry, now or again.
func (q *Queue) fetch() {
	shadow := &q.shadow[q.fetched%q.depth]
	move(shadow[:], q.slot(q.fetched))
	index, number := mlx5.Header(shadow)
	switch {
	case index != uint16(q.fetched):
		q.nic.violation(q, "entry %d has index %#x", q.fetched, index)
	case number != q.number:
		q.nic.violation(q, "entry %d names queue pair %#x", q.fetched, number)
	}
	q.fetched++
}

// changed reports an entry that is not as it was read.
func (q *Queue) changed(number uint64) bool {
	var now [mlx5.EntryBytes]byte
	move(now[:], q.slot(number))
	return now != q.shadow[number%q.depth]
}

// compare looks for an entry that was written again before its completion was read.
func (q *Queue) compare() {
	if q.halted || q.fetched == q.freed {
		return
	}
	number := q.freed
	if q.nic.random != nil {
		number += q.nic.random.Uint64N(q.fetched - q.freed)
	}
	if !q.changed(number) {
		return
	}
	q.consume() // its writer may have read the completion meanwhile
	if number >= q.freed && !q.halted {
		q.nic.violation(q, "entry %d changed before its completion was read", number)
	}
}

// execute carries out the next entry, and reports whether it did.
func (q *Queue) execute() bool {
	if q.fetched == q.executed {
		q.fetch()
	} else if q.nic.chance(4) && q.changed(q.executed) { // a card may read twice
		q.nic.violation(q, "entry %d changed before it was carried out", q.executed)
	}
	if q.halted {
		return false
	}
	// Writes are visible before later ones, and atomics happen after them.
	if !q.nic.options.Relaxed && len(q.landing) > 0 {
		return false
	}
	e, err := mlx5.Decode(&q.shadow[q.executed%q.depth])
	if q.failed {
		q.finish(e, mlx5.Flushed, 0)
		return true
	}
	syndrome, vendor := mlx5.Syndrome(0), uint8(0)
	if f, ok := q.faults[q.executed]; ok && !q.dead {
		if q.retries < f.Retries {
			q.retries++
			return false
		}
		syndrome, vendor = f.Syndrome, f.Vendor
		delete(q.faults, q.executed)
	}
	q.retries = 0
	switch {
	case err != nil:
		syndrome = mlx5.LocalOperation
	case q.dead && e.Opcode != mlx5.Nop:
		syndrome = mlx5.RetryExceeded
	case syndrome == 0:
		syndrome = q.perform(&e)
	}
	q.finish(e, syndrome, vendor)
	return true
}

// finish ends an entry, with a completion where one is due.
func (q *Queue) finish(e mlx5.Entry, syndrome mlx5.Syndrome, vendor uint8) {
	c := mlx5.Completion{Opcode: e.Opcode, Queue: q.number, Index: uint16(q.executed)}
	r := result{number: q.executed, completion: c}
	q.executed++
	switch {
	case syndrome != 0:
		if vendor == 0 {
			vendor = 0x88
		}
		q.failed = true
		r.completion.Kind, r.completion.Syndrome, r.completion.Vendor = mlx5.KindError, syndrome, vendor
	case e.Flags&mlx5.Signalled == 0:
		if q.silent++; q.silent >= q.depth {
			q.nic.violation(q, "%d unsignalled entries in a row: none would complete", q.silent)
		}
		return
	}
	q.silent = 0
	q.waiting = append(q.waiting, r)
}
