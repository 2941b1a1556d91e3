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

// metadataSpecs are the Specs whose metadata is fuzzed: every layout, with and without a capacity.
func metadataSpecs() []spec.Spec {
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

// metadataHandle is rank 0 of three, with metadata in plain memory, the others' for the caller to
// fill.
func metadataHandle(s spec.Spec) *host {
	h := &host{
		Base:   &spec.Base{Comm: &weft.Comm{}, Spec: s, Geometry: spec.NewGeometry(s, 3)},
		rounds: &enginehost.Rounds{Live: []int{0, 1, 2}},
	}
	h.scratch = newScratch(&h.Geometry)
	for range 3 {
		h.routing = append(h.routing, make([]byte, 2*h.Geometry.MetadataSize()))
	}
	return h
}

// FuzzMetadata reads metadata that may be anything: a rank that was left behind reads what others
// write meanwhile. It finds the rank whose metadata makes no sense, or makes a routing whose every
// row and token exists.
func FuzzMetadata(f *testing.F) {
	topk, weights := weft.TensorOf([]int32{0, 3, -1, 5, 1, 0}, 2, 3), weft.TensorOf([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	for i, s := range metadataSpecs() {
		h := metadataHandle(s)
		whole := h.metadata(1, 0)
		if err := h.writeMetadata("prepare", &whole, topk, weights); err != nil {
			f.Fatal(err)
		}
		good := h.routing[1][:h.Geometry.MetadataSize()]
		f.Add(uint8(i), good)
		far := bytes.Clone(good) // its records for rank 0 begin far outside
		binary.LittleEndian.PutUint32(far[4*(s.Experts+3):], 1<<28)
		f.Add(uint8(i), far)
		f.Add(uint8(i), []byte{})
		f.Add(uint8(i), bytes.Repeat([]byte{0xFF}, len(good)))
		f.Add(uint8(i), bytes.Repeat([]byte{1, 0, 0, 0}, len(good)/4))
		f.Add(uint8(i), slices.Concat(good[:4*s.Experts], bytes.Repeat([]byte{2, 0, 0, 0}, 20)))
		h.routing[2] = h.routing[1]
		own := h.metadata(0, 0)
		if err := h.writeMetadata("prepare", &own, topk, weights); err != nil {
			f.Fatal(err)
		}
		h.sumCounts(0)
		if _, bad := h.newBatch(&own, topk, weights); bad >= 0 {
			f.Fatalf("%+v: the metadata of rank %d is refused", s, bad)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, raw []byte) {
		specs := metadataSpecs()
		h := metadataHandle(specs[int(which)%len(specs)])
		for _, mem := range h.routing[1:] {
			copy(mem, raw[:min(int64(len(raw)), h.Geometry.MetadataSize())])
		}
		own := h.metadata(0, 0)
		if err := h.writeMetadata("prepare", &own, topk, weights); err != nil {
			t.Fatal(err)
		}
		h.sumCounts(0)
		r, bad := h.newBatch(&own, topk, weights)
		if bad == 0 {
			t.Fatal("its own metadata makes no sense")
		}
		if bad > 0 {
			return
		}
		rows := int32(h.Geometry.Rows())
		for src := range 3 {
			for i := r.firstToken[src]; i < r.firstToken[src+1]; i++ {
				if token := r.recvTokens[i].token; token < 0 || int(token) >= h.Geometry.Tokens {
					t.Fatalf("token %d from rank %d", token, src)
				}
				for _, l := range r.rowsOf(i) {
					if l.row < -1 || l.row >= rows {
						t.Fatalf("row %d of %d", l.row, rows)
					}
				}
			}
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
