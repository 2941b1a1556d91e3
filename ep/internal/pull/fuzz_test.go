package pull

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// boardSpecs are the Specs whose boards are fuzzed: every layout, with and without a capacity.
func boardSpecs() []spec.Spec {
	var all []spec.Spec
	for l := range spec.Layouts {
		s := spec.Spec{Experts: 6, TopK: 3, Hidden: 8, MaxTokens: 2, Layout: l}
		if !l.ByExpert() {
			s.Reduction, s.Weighting = spec.Partial, spec.Plain
		}
		all = append(all, s.Normalize())
		if l != spec.RankMajor {
			s.Capacity, s.Overflow = 3, spec.OverflowDrop
			all = append(all, s.Normalize())
		}
	}
	return all
}

// boardHandle is rank 0 of three, with boards in plain memory, the others' for the caller to fill.
func boardHandle(s spec.Spec) *host {
	h := &host{Base: &spec.Base{Comm: &weft.Comm{}, Spec: s, Geometry: spec.NewGeometry(s, 3)}}
	h.scratch = newScratch(&h.Geometry)
	for r := range 3 {
		h.boards = append(h.boards, newBoard(&h.Geometry, make([]byte, h.Geometry.BoardSize())))
		h.scratch.notices[r] = h.boards[r].notices[0]
	}
	return h
}

// FuzzBoard reads routing from boards that hold anything: a rank that was left behind reads what
// others write meanwhile. It finds the board that makes no sense, or a Routing whose every row and
// token exists.
func FuzzBoard(f *testing.F) {
	topk, weights := weft.TensorOf([]int32{0, 3, -1, 5, 1, 0}, 2, 3), weft.TensorOf([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	for i, s := range boardSpecs() {
		h := boardHandle(s)
		whole := h.boards[1].routing(0)
		if err := h.writeRouting("prepare", &whole, topk, weights); err != nil {
			f.Fatal(err)
		}
		good := h.boards[1].mem[spec.RoutingOffset : spec.RoutingOffset+h.Geometry.RoutingSize()]
		f.Add(uint8(i), good)
		far := bytes.Clone(good) // its records for rank 0 begin far outside
		binary.LittleEndian.PutUint32(far[4*(s.Experts+3):], 1<<28)
		f.Add(uint8(i), far)
		f.Add(uint8(i), []byte{})
		f.Add(uint8(i), bytes.Repeat([]byte{0xFF}, len(good)))
		f.Add(uint8(i), bytes.Repeat([]byte{1, 0, 0, 0}, len(good)/4))
		f.Add(uint8(i), slices.Concat(good[:4*s.Experts], bytes.Repeat([]byte{2, 0, 0, 0}, 20)))
		h.boards[2] = h.boards[1]
		own := h.boards[0].routing(0)
		if err := h.writeRouting("prepare", &own, topk, weights); err != nil {
			f.Fatal(err)
		}
		h.countBoards(0)
		if _, bad := h.readRouting(&own, topk, weights); bad >= 0 {
			f.Fatalf("%+v: the board of rank %d is refused", s, bad)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, raw []byte) {
		specs := boardSpecs()
		h := boardHandle(specs[int(which)%len(specs)])
		for _, b := range h.boards[1:] {
			copy(b.mem[spec.RoutingOffset:], raw[:min(int64(len(raw)), h.Geometry.RoutingSize())])
		}
		own := h.boards[0].routing(0)
		if err := h.writeRouting("prepare", &own, topk, weights); err != nil {
			t.Fatal(err)
		}
		h.countBoards(0)
		r, bad := h.readRouting(&own, topk, weights)
		if bad == 0 {
			t.Fatal("its own board makes no sense")
		}
		if bad > 0 {
			return
		}
		rows := int32(h.Geometry.Rows())
		for src := range 3 {
			for i := r.arrive[src]; i < r.arrive[src+1]; i++ {
				if a := r.arrivals[i]; a.token < 0 || int(a.token) >= h.Geometry.Tokens {
					t.Fatalf("token %d from rank %d", a.token, src)
				}
				for _, l := range r.landingsOf(i) {
					if l.row < -1 || l.row >= rows {
						t.Fatalf("row %d of %d", l.row, rows)
					}
				}
			}
		}
	})
}

// FuzzRefusal reads what a peer says of why it refuses.
func FuzzRefusal(f *testing.F) {
	text := make([]byte, spec.TextSize)
	for _, err := range []error{
		errors.New(""), weft.Invalidf("no"),
		weft.Unsupportedf("%s", bytes.Repeat([]byte{'x'}, 2*spec.TextSize)),
	} {
		f.Add(enginehost.PutRefusal(text, err), bytes.Clone(text))
	}
	f.Add(uint32(0xFFFFFFFF), text)
	f.Add(uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, word uint32, raw []byte) {
		text := make([]byte, spec.TextSize)
		copy(text, raw)
		err := enginehost.TakeRefusal(2, "test", word, text)
		if (err == nil) != (word == 0) {
			t.Fatalf("%#x: %v", word, err)
		}
		if peer, ok := errors.AsType[*weft.PeerError](err); err != nil &&
			(!ok || peer.Rank != 2 || errors.Is(err, weft.ErrInvalid) == errors.Is(err, weft.ErrUnsupported)) {
			t.Fatalf("%#x: %v", word, err)
		}
	})
}

// FuzzNames reads the names of what a Spec can ask for.
func FuzzNames(f *testing.F) {
	for _, names := range [][]string{
		spec.LayoutNames[:], spec.ReductionNames[:], spec.WeightingNames[:],
		spec.PayloadNames[:], spec.CountNames[:],
	} {
		for _, n := range names {
			f.Add(n)
		}
	}
	f.Add("")
	f.Add("invalid(7)")
	f.Add("Exact")
	f.Fuzz(func(t *testing.T, s string) {
		same := func(what, name string, err error) {
			if err == nil && name != s || err != nil && !errors.Is(err, weft.ErrInvalid) {
				t.Errorf("%s %q reads %q: %v", what, s, name, err)
			}
		}
		l, err := spec.ParseLayout(s)
		same("layout", l.String(), err)
		r, err := spec.ParseReduction(s)
		same("reduction", r.String(), err)
		u, err := spec.ParseWeighting(s)
		same("weighting", u.String(), err)
		p, err := spec.ParsePayload(s)
		same("payload", p.String(), err)
		c, err := spec.ParseCounts(s)
		same("counts", c.String(), err)
	})
}

// FuzzCountRouting counts arbitrary selections, narrow and wide.
func FuzzCountRouting(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 255, 255, 255, 255}, uint8(2), false)
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<40), uint8(1), true)
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<63), uint8(1), true)
	f.Add([]byte{}, uint8(0), false)
	f.Fuzz(func(t *testing.T, raw []byte, k uint8, wide bool) {
		const experts, ranks, perNode = 8, 4, 2
		d := weft.Int32
		if wide {
			d = weft.Int64
		}
		width := max(int(k), 1)
		mem := make([]uint64, len(raw)/8+1) // aligned
		tokens := len(raw) / d.Size() / width
		topk := weft.TensorOf(mem)
		copy(topk.Raw(), raw)
		topk.DType, topk.Shape = d, []int{tokens, width}
		c, err := spec.CountRouting(topk, experts, ranks, perNode)
		if err != nil {
			if !errors.Is(err, weft.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		var selections, goes, visits, nodes int32
		for _, n := range c.ExpertSelections {
			selections += n
		}
		for _, in := range c.TokenInRank {
			if in {
				goes++
			}
		}
		for _, n := range c.RankTokens {
			visits += n
		}
		for _, n := range c.NodeTokens {
			nodes += n
		}
		if goes != visits || nodes > visits || visits > selections || int(selections) > tokens*width ||
			selections > 0 && nodes == 0 {
			t.Fatalf("%d selections, %d visits, %d of them marked, %d nodes", selections, visits, goes, nodes)
		}
	})
}
