package pull

import (
	"context"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine/host/mirror"
	"github.com/weftgo/weft/internal/simd"
)

// directBytes is the size of a row from which on rows that lie in a window are written to other hosts from there,
// one by one. Smaller ones are packed first: a write costs more than the copy.
const directBytes = 8 << 10

// ship sends the rows, or this rank's sums of them, to their homes on other hosts.
func (c *gather) ship(ctx context.Context) error {
	h, f, r := c.h, c.h.far, c.r
	if f == nil || h.byHost() {
		return nil
	}
	if err := f.claim(ctx, c.op, c.round, &f.brought); err != nil {
		return err
	}
	p := packer{c: c}
	if !c.Scalars.IsZero() {
		if err := f.claimDots(ctx, c.op, c.round); err != nil {
			return err
		}
	}
	if c.borrowed && h.Spec.OutputSize() >= directBytes {
		p.from, p.offset, _ = h.Comm.Operations().Find(c.Rows.Data, c.Rows.Bytes())
	}
	me, n := h.Comm.Rank(), h.Comm.Size()
	for i := range n {
		home := (me + i) % n
		if !h.rounds.Far(home) || !h.live(home) || r.firstToken[home] == r.firstToken[home+1] {
			continue
		}
		p.home, p.at = home, f.sumsAt+int(f.index[h.Comm.Host(home)][me])*f.sums
		p.ship()
	}
	return nil
}

// packer ships rows to one home after the other.
type packer struct {
	c      *gather
	home   int
	at     int          // of this rank's rows in the home's part of the window
	packed int          // rows in the outbox
	dots   int          // numbers in the outbox
	from   *weft.Window // where the rows lie, if they need not be packed
	offset int
}

// ship sends all rows to the home. Chunks are of so many selections, or tokens.
func (p *packer) ship() {
	c, h, r := p.c, p.c.h, p.c.r
	f, n := h.far, h.Spec.OutputSize()
	from, to := int(r.firstToken[p.home]), int(r.firstToken[p.home+1])
	of := to - from
	if h.selects() {
		of = r.selectionsFrom(p.home)
	}
	chunk := f.chunk(of, n)
	nth := 0
	begin := len(f.parts)
	end := func(last bool) {
		if parts := f.parts[begin:len(f.parts):len(f.parts)]; last {
			h.rounds.Ship(p.home, broughtAt, complete(c.round), parts)
		} else if len(parts) > 0 {
			h.rounds.Ship(p.home, broughtAt, progress(c.round, nth-1, chunk), parts)
		}
		begin = len(f.parts)
		h.rounds.Pump()
	}
	if h.partial != nil {
		for ; from < to; from += chunk {
			k := min(chunk, to-from)
			c.first = from
			h.each(k, k*n*h.Spec.TopK, (*sumHere)(c))
			f.parts = append(f.parts, mirror.Part{
				From: h.partial.Window.Region(), Offset: from * n,
				To: f.window.Remote(p.home), At: p.at + nth*n, Bytes: k * n,
			})
			nth += k
			if from+k < to {
				end(false)
			}
		}
		c.first = 0
	} else {
		for i := from; i < to; i++ {
			for _, l := range r.rowsOf(int32(i)) {
				if l.row >= 0 {
					p.add(begin, int(l.row), nth)
				}
				if nth++; nth%chunk == 0 && nth < of {
					end(false)
				}
			}
		}
	}
	if !c.Scalars.IsZero() {
		p.addDots(c.Scalars.Data)
	}
	end(true)
}

// add adds a row, which goes to a place of the home's, to the parts from the first one of its chunk on.
func (p *packer) add(first, row, place int) {
	h := p.c.h
	f, n := h.far, h.Spec.OutputSize()
	part := mirror.Part{To: f.window.Remote(p.home), At: p.at + place*n, Bytes: n}
	if p.from != nil {
		part.From, part.Offset = p.from.Region(), p.offset+row*n
	} else {
		part.From, part.Offset = f.outbox.Region(), p.packed*n
		simd.Copy(unsafe.Add(pointer(f.outbox.Bytes()), part.Offset), unsafe.Add(p.c.Rows.Data, row*n), n, false)
		p.packed++
	}
	if k := len(f.parts); k > first {
		if before := &f.parts[k-1]; before.Offset+before.Bytes == part.Offset && before.At+before.Bytes == part.At {
			before.Bytes += n
			return
		}
	}
	f.parts = append(f.parts, part)
}

// addDots adds the number of each selection.
func (p *packer) addDots(numbers unsafe.Pointer) {
	h := p.c.h
	k := h.far.packDots(p.c.r, p.home, numbers, p.dots)
	h.far.parts = append(h.far.parts, h.far.dotsPart(p.home, p.dots, k))
	p.dots += k
}

func (f *far) claimDots(ctx context.Context, op string, round uint64) error {
	before := f.dotted
	f.dotted = round
	if before+1 < round {
		return nil
	}
	return f.h.rounds.Await(ctx, op, round)
}

// dotsAt is where numbers begin in the outbox.
func (f *far) dotsAt() int {
	if f.h.byHost() {
		return f.numberAt - f.sumsAt
	}
	return f.h.Geometry.Rows() * f.h.Spec.OutputSize()
}

// packDots copies the number of each selection of a rank's tokens into the outbox, behind those that are there, and
// returns how many they are.
func (f *far) packDots(r *hostRouting, home int, numbers unsafe.Pointer, behind int) int {
	byExpert, topk := f.h.Spec.Layout.ByExpert(), f.h.Spec.TopK
	out := unsafe.Slice((*float32)(unsafe.Add(pointer(f.outbox.Bytes()), f.dotsAt())), f.numberOutbox()/4)[behind:]
	n := 0
	for i := r.firstToken[home]; i < r.firstToken[home+1]; i++ {
		row := 0
		if !byExpert {
			row = r.rowOf(i)
		}
		for _, l := range r.allOf(i) {
			if l.k < 0 {
				continue
			}
			at := int(l.row)
			if !byExpert {
				at = row*topk + int(l.k)
			}
			out[n] = 0
			if row >= 0 && at >= 0 {
				out[n] = *(*float32)(unsafe.Add(numbers, 4*at))
			}
			n++
		}
	}
	return n
}

func (f *far) dotsPart(home, behind, n int) mirror.Part {
	host, me := f.h.Comm.Host(home), f.h.Comm.Rank()
	return mirror.Part{
		From: f.outbox.Region(), Offset: f.dotsAt() + 4*behind,
		To: f.window.Remote(home), At: f.numberAt + int(f.index[host][me])*f.numbers, Bytes: 4 * n,
	}
}

// shipDots sends the numbers in the stage of scalars home, those of other hosts.
func (f *far) shipDots(ctx context.Context, op string, round uint64, r *hostRouting) error {
	if f == nil {
		return nil
	}
	if err := f.claim(ctx, op, round, &f.dotted); err != nil {
		return err
	}
	f.shipNumbers(r, round, pointer(f.h.scalars.Window.Bytes()))
	return nil
}

// shipNumbers sends numbers of rows home, and nothing else.
func (f *far) shipNumbers(r *hostRouting, round uint64, numbers unsafe.Pointer) {
	behind := 0
	for _, home := range f.h.rounds.Live {
		if !f.h.rounds.Far(home) || r.firstToken[home] == r.firstToken[home+1] {
			continue
		}
		n := f.packDots(r, home, numbers, behind)
		f.parts = append(f.parts, f.dotsPart(home, behind, n))
		f.h.rounds.Ship(home, broughtAt, complete(round), f.parts[len(f.parts)-1:len(f.parts):len(f.parts)])
		behind += n
	}
}

// sumsFrom is where the rows come from a rank of another host that go home to this one.
func (f *far) sumsFrom(rank int) []byte {
	return f.window.Bytes()[f.sumsAt+int(f.index[f.here()][rank])*f.sums:][:f.sums]
}

// numbersFrom are the numbers that have come from there, once they have.
func (f *far) numbersFrom(ctx context.Context, op string, round uint64, r *hostRouting, rank int) ([]float32, error) {
	if r.selected[rank] == 0 {
		return nil, nil
	}
	if err := f.await(ctx, op, rank, broughtAt, complete(round)); err != nil {
		return nil, err
	}
	at := f.numberAt + int(f.index[f.here()][rank])*f.numbers
	return unsafe.Slice((*float32)(pointer(f.window.Bytes()[at:])), f.numbers/4), nil
}

// homeBlock is how many tokens are summed at once: those whose rows are waited for.
const homeBlock = 64

// homeByBlocks sums this rank's tokens as their rows come.
func (c *gather) homeByBlocks(ctx context.Context) error {
	h, r := c.h, c.r
	n, topk := h.Spec.OutputSize(), h.Spec.TopK
	last := h.scratch.last // by rank: 1 + the last row of a block, 0 for none
	sent := h.scratch.sent
	clear(sent)
	if !h.selects() {
		for _, v := range r.destinations {
			sent[v.rank] = max(sent[v.rank], v.nth+1)
		}
	}
	for c.first = 0; c.first < r.batch.Tokens; c.first += homeBlock {
		k := min(homeBlock, r.batch.Tokens-c.first)
		if h.byHost() {
			if err := c.awaitSums(ctx, c.first, c.first+k); err != nil {
				return err
			}
			h.each(k, k*topk*n, c.homeJob())
			continue
		}
		clear(last)
		if h.selects() {
			for i := c.first * topk; i < (c.first+k)*topk; i++ {
				if r.rows[i] >= 0 {
					last[int(r.experts[i])/h.Geometry.Local] = r.nth[i] + 1
				}
			}
		} else {
			for _, v := range r.destinations[r.firstDestination[c.first]:r.firstDestination[c.first+k]] {
				if v.live {
					last[v.rank] = v.nth + 1
				}
			}
		}
		for _, d := range h.rounds.Live {
			if last[d] == 0 || !h.rounds.Far(d) {
				continue
			}
			of := int(sent[d])
			if h.selects() {
				of = int(r.selected[d])
			}
			value := progress(c.round, int(last[d])-1, h.far.chunk(of, n))
			if err := h.far.await(ctx, c.op, d, broughtAt, value); err != nil {
				return err
			}
		}
		h.each(k, k*topk*n, c.homeJob())
	}
	c.first = 0
	if h.byHost() {
		return nil
	}
	for _, d := range h.rounds.Live { // what nobody needs has landed, too
		if h.rounds.Far(d) && r.selected[d] > 0 {
			if err := h.far.await(ctx, c.op, d, broughtAt, complete(c.round)); err != nil {
				return err
			}
		}
	}
	return nil
}
