package host

import (
	"context"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/rankset"
)

// An all-to-all-v opens with a table of words as its payload: where the rank's input lies, and for each
// live rank what it sends that rank and receives from it. The table is longer than a header has room
// for. The data follows if there is little.
//
//	0, 1, 2      window, offset and stride of the input
//	4 + 3*i      elements for the i-th live rank
//	    + 1      where they lie in the input, in bytes
//	    + 2      elements that it receives from that rank
const (
	tableHead = 4
	tableRow  = 3

	maxCount = 1 << 41 // spec.Call allows no more; what a rank that was left out reads may be anything
)

func tableBytes(ranks int) int { return 8 * (tableHead + tableRow*ranks) }

// eagerRoom is the most data that goes with a table.
func eagerRoom(slot, ranks int) int { return min(slot-tableBytes(ranks), tuning.EagerCounts) }

func tableOf(payload []byte, ranks int) []int {
	return unsafe.Slice((*int)(unsafe.Pointer(unsafe.SliceData(payload))), tableHead+tableRow*ranks)
}

// exchangeCounts opens an all-to-all-v. Every rank reads the tables of all ranks: so all find what a
// rank sends and its peer does not expect, and the sizes on which the choice of an algorithm depends.
func (c *call) exchangeCounts(ctx context.Context) error {
	counts := &c.given.Counts
	own := 0
	for i, r := range c.Live {
		s, d := &c.send[i], &c.recv[i]
		*s, *d = piece{}, piece{}
		s.src, s.n = c.given.InputPart(r)
		d.dst, d.n = c.given.OutputPart(r)
		if i != c.Self {
			s.at = own
			own += s.n
		}
	}
	head := tableBytes(c.Ranks)
	little := own <= eagerRoom(c.Slot, c.Ranks)
	n := head
	if little {
		n += own
	}
	to := c.Fill(n)
	if little { // the table goes to all
		c.limit(n, func(i int) (from, to int) { return 0, head + c.send[i].at + c.send[i].n })
	}
	table := tableOf(to, c.Ranks)
	in := c.reference()
	table[0], table[1], table[2] = int(in.Window), int(in.Offset), int(in.Stride)
	for i, r := range c.Live {
		row := table[tableHead+tableRow*i:]
		row[0], row[1], row[2] = counts.Send[r], c.send[i].src, counts.Recv[r]
		if little && i != c.Self {
			p := &c.send[i]
			c.stage(to[head+p.at:][:p.n], c.in[p.src:][:p.n])
		}
	}
	if err := c.open(ctx); err != nil {
		return err
	}
	return c.readCounts()
}

// readCounts checks the tables of all ranks and takes from them what this rank needs.
func (c *call) readCounts() error {
	head, size, round := tableBytes(c.Ranks), c.DType.Size(), c.Last()
	c.Bytes, c.Sent, c.Windows = 0, 0, spec.Inputs
	for i, r := range c.Live {
		c.ins[i] = c.Payload(r, round, head)
	}
	for i, r := range c.Live {
		table := tableOf(c.ins[i], c.Ranks)
		ref := enginehost.OperandRef{Window: uint64(table[0]), Offset: uint64(table[1]), Stride: uint32(table[2])}
		c.inputs[i] = ref
		if ref.Window == 0 && ref.Stride != empty {
			c.Windows = 0
		}
		at := head
		for j, peer := range c.Live {
			row := table[tableHead+tableRow*j:]
			sent, wanted := row[0], tableOf(c.ins[j], c.Ranks)[tableHead+tableRow*i+2]
			if sent != wanted || uint(sent) > maxCount {
				return c.unequal(r, peer, sent, wanted)
			}
			n := sent * size
			if j == c.Self {
				p := &c.recv[i]
				p.src, p.at, p.of = row[1], at, at+p.n
			}
			if j != i {
				at += n
			}
			c.Bytes, c.Sent = max(c.Bytes, n), max(c.Sent, at-head)
		}
	}
	return nil
}

// unequal is the error of all ranks if what one sends is not what its peer receives.
func (c *call) unequal(from, to, sent, wanted int) error {
	// A rank that was left out while it stood still may be looking at later rounds of the others.
	if err := c.Comm.Operations().Begin(c.name); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w: rank %d sends %d elements to rank %d, which receives %d from it", c.name,
		weft.ErrMismatch, from, sent, to, wanted)
}

// differInCounts reports whether calls that all ranks have found different differ in the counts of a V form alone. All
// ranks look at the same calls, and so they find the same.
func (c *call) differInCounts(round uint64) bool {
	same, own := true, uint64(c.given.Fingerprint())
	for call := range c.Calls(round) {
		if !spec.DifferInCounts(own, call) {
			return false
		}
		same = same && call == own
	}
	return !same
}

// compareCounts is a round in which ranks tell each other counts that had to be the same on all, but are not, and
// returns the error that says which.
func (c *call) compareCounts(ctx context.Context) error {
	ranks, size := c.Comm.Size(), c.DType.Size()
	bytes := 16 * ranks
	tableOf := func(payload []byte) []int {
		return unsafe.Slice((*int)(unsafe.Pointer(unsafe.SliceData(payload))), 2*ranks)
	}
	own := tableOf(c.Fill(bytes))
	for r := range ranks {
		from, n := c.given.OutputPart(r)
		if c.Collective == spec.ReduceScatterV {
			from, n = c.given.InputPart(r)
		}
		own[r], own[ranks+r] = n/size, from/size
	}
	round := c.Publish()
	if err := c.Await(ctx, c.name, round); err != nil {
		return err
	}
	words := ""
	for i := 0; i < 2*ranks && words == ""; i++ {
		camps := rankset.CampsOf(func(yield func(int, int) bool) {
			for _, p := range c.Live {
				if !yield(p, tableOf(c.Payload(p, round, bytes))[i]) {
					return
				}
			}
		})
		switch {
		case !camps.Differ():
		case i < ranks:
			words = fmt.Sprintf("the count of rank %d, in elements: %s", i, camps.On(strconv.Itoa))
		default:
			words = fmt.Sprintf("where rank %d's part begins, in elements: %s", i-ranks, camps.On(strconv.Itoa))
		}
	}
	// A rank that was left out while it stood still may have looked at later rounds of the others.
	if err := c.Comm.Operations().Begin(c.name); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w on %s", c.name, weft.ErrMismatch, words)
}
