package host

import (
	"math"

	"github.com/weftgo/weft/collective/spec"
)

// A piece is what one rank gets from another: n bytes at src of the sender's input. It goes to dst of
// the receiver's output, or is reduced with those of the other ranks to n bytes at dst.
type piece struct {
	src, dst, n int
	at, of      int // where it lies in the sender's eager payload, and how long that is
}

// distinct says whether the pieces of a sender differ by receiver. Otherwise all get the same.
func (c *call) distinct() bool {
	switch c.Collective {
	case spec.ReduceScatter, spec.ReduceScatterV, spec.AllToAll, spec.AllToAllV, spec.Scatter:
		return true
	default:
		return false
	}
}

// sends says whether other live ranks get something of a rank.
func (c *call) sends(rank int) bool {
	switch c.Collective {
	case spec.Broadcast, spec.Scatter:
		return rank == c.Root
	case spec.Reduce, spec.Gather:
		return rank != c.Root
	default:
		return true
	}
}

// plan lists the pieces: in send what a rank that sends gives each, in recv what this one gets.
// Those of an all-to-all-v are known since the ranks have exchanged their counts.
func (c *call) plan() {
	switch c.Collective {
	case spec.AllToAllV:
		return
	case spec.AllReduce: // on the path that counts nanoseconds
		p := piece{n: c.Bytes, of: c.Bytes}
		for i := range c.Live {
			c.send[i], c.recv[i] = p, p
		}
		return
	default:
	}
	self, at := c.Comm.Rank(), 0
	distinct := c.distinct()
	for i, r := range c.Live {
		s, d := piece{n: c.Bytes}, piece{n: c.Bytes, of: c.Sent}
		switch c.Collective {
		case spec.ReduceScatterV:
			s.src, s.n = c.given.InputPart(r)
			d.src, d.n = c.given.InputPart(self)
		case spec.AllGatherV:
			_, s.n = c.given.OutputPart(self)
			d.dst, d.n = c.given.OutputPart(r)
			d.of = d.n
		default:
			if distinct {
				s.src, d.src = r*c.Bytes, self*c.Bytes
			}
			if c.Collective == spec.AllGather || c.Collective == spec.AllToAll || c.Collective == spec.Gather {
				d.dst = r * c.Bytes
			}
		}
		if c.out == nil || r != self && !c.sends(r) || r == self && c.in == nil {
			d.n = 0
		}
		s.at = at
		if distinct {
			at += s.n
		}
		c.send[i], c.recv[i] = s, d
	}
	for i := range c.Live {
		c.recv[i].at = c.send[c.Self].at
	}
}

// all is more than any piece has.
const all = math.MaxInt

// part is the bytes of a piece from at, at most so many.
func (p *piece) part(at, most int) int { return max(0, min(p.n-at, most)) }

// take puts so many bytes of each piece of the other ranks, which rows have, where they belong. Those
// of a reduction need this rank's own beside them.
func (c *call) take(at, most int) {
	if c.Collective.Reduces() {
		own := &c.recv[c.Self]
		if n := own.part(at, most); n > 0 {
			c.rows[c.Self] = c.in[own.src+at:][:n]
			c.reduce(c.out[at:][:n], c.rows[:c.Ranks], c.stream)
		}
		return
	}
	for k := 1; k < c.Ranks; k++ {
		i := (c.Self + k) % c.Ranks // not all from the same rank at once
		if row := c.rows[i]; len(row) > 0 {
			c.copy(c.out[c.recv[i].dst+at:], row)
			c.landed(c.Live[i], at, at+len(row))
		}
	}
}

// keep puts so many bytes of the piece that a rank has for itself where they belong.
func (c *call) keep(at, most int) {
	if own := &c.recv[c.Self]; own.n > at && !c.Collective.Reduces() {
		n := own.part(at, most)
		c.move(c.out[own.dst+at:][:n], c.in[own.src+at:][:n])
		c.landed(c.Comm.Rank(), at, at+n)
	}
}
