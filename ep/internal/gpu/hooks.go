package gpu

// What tests of handles ask of the engine behind them.

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/device"
)

// HookAnnounced is the set of receive buffers that a handle's next operation would announce as free.
func HookAnnounced(h spec.RowEngine) uint32 { g := h.(*handle); return g.ring.Free(g.lane.Capture()) }

// HookWarnAgain has the log say again why kernels drive no card.
func HookWarnAgain() {
	warned.Lock()
	defer warned.Unlock()
	warned.is = false
}

// HookReadable says whether others read a tensor where it is, rather than a copy.
func HookReadable(h spec.RowEngine, t weft.Tensor) bool {
	_, ok := h.(*handle).readable(t)
	return ok
}

// HookProgramsOf names the programs whose kernels move rows of the handles of a Spec: that of its
// dispatches first, and behind it that of calls that do everything at once.
func HookProgramsOf(s spec.Spec, ranks int) (all []string) {
	s = s.Normalize()
	h := newHandle(&spec.Base{Spec: s, Geometry: spec.NewGeometry(s, ranks)}, spec.Choose(s, ranks))
	for _, p := range h.programs("").sources {
		all = append(all, p.Name)
	}
	return all
}

// HookLeaders counts the rows that the tokens of a routing in direct mode go as: one for each token and rank.
func HookLeaders(r *spec.Batch, topk int) (n int, err error) {
	p := r.Info.(*gpuRouting)
	rows := make([]byte, r.Tokens*topk*4)
	err = p.h.device.Context().Download(rows, p.memory.Pointer().Add(p.h.routing.destRows))
	for i := 0; i < len(rows); i += 4 {
		n += int(binary.LittleEndian.Uint32(rows[i:]) >> 31) // LEADER of direct.cuh
	}
	return n, err
}

// HookSetEpoch has a handle on GPUs count its operations from an epoch on, before the first.
func HookSetEpoch(h spec.RowEngine, epoch uint64) error {
	g := h.(*handle)
	var counts []byte
	for range g.counts {
		counts = binary.LittleEndian.AppendUint64(counts, epoch)
		counts = binary.LittleEndian.AppendUint64(counts, epoch%3)
	}
	c := g.device.Context()
	if err := c.Upload(g.lane.Local(device.StateBytes), counts); err != nil {
		return err
	}
	number := binary.LittleEndian.AppendUint32(nil, uint32(epoch))
	for at, size := range g.window.Zeroed() {
		if k := moverOf[*rowMap](g); k != nil && at == k.records {
			continue // selections that a prepare has taken, whose places are empty
		}
		last := slices.Repeat(number, int(size)/4)
		if err := c.Upload(g.lane.Window().Pointer().Add(int(at)), last); err != nil {
			return err
		}
	}
	return c.Synchronize()
}

// HookSoilRoutings fills the memory of idle routings as memory may be that was just
// allocated.
func HookSoilRoutings(h spec.RowEngine) error {
	g := h.(*handle)
	for _, r := range g.idle.Plain {
		if err := g.device.Context().Upload(r.memory.Pointer(),
			slices.Repeat([]byte{0x5A, 0, 0x5A, 0}, g.routing.total/4)); err != nil {
			return err
		}
	}
	return g.device.Context().Synchronize()
}

// Told is where a rank's prepare of token-major rows stores what it tells another: row_map.cuh.
type Told struct {
	Blocks, Words    int // blocks that have a share, and words of a block's bits
	Opening, Tokens  unsafe.Pointer
	Share, Selection func(block, i int) unsafe.Pointer
	Mark             func(block int) unsafe.Pointer
}

// HookTold gives the places in the window of rank `to` in which rank src's prepare of that number stores.
func HookTold(h spec.RowEngine, src, to int, epoch uint64) Told {
	g := h.(*handle)
	k, s, grid := moverOf[*rowMap](g), &g.Geometry, g.grids[ofDispatch].blocks()
	blocks, words, source := k.blocks(), k.words(), int(epoch&1)*s.Ranks+src
	at := func(region int64, offset int) unsafe.Pointer {
		return pointer(g.lane.Window().PeerPointer(to).Add(int(region) + offset))
	}
	return Told{
		Blocks: blocks, Words: words,
		Opening: at(k.openings, (int((epoch-1)%3)*s.Ranks+src)*device.OpeningBytes),
		Tokens:  at(k.totals, source*8),
		Share: func(block, i int) unsafe.Pointer {
			if i < s.Ranks {
				return at(k.shares, ((source*s.Ranks+i)*blocks+block)*8)
			}
			before := 2 * s.Ranks * s.Ranks * blocks
			return at(k.shares, (before+(source*blocks+block)*(s.Local+words+1)+i-s.Ranks)*8)
		},
		Selection: func(block, i int) unsafe.Pointer {
			return at(k.records, ((source*blocks+block)*k.share()*s.TopK+i)*selectionBytes)
		},
		Mark: func(block int) unsafe.Pointer { return at(k.marks, (src*grid+block)*4) },
	}
}

// HookGrids are how many blocks of how many threads a handle's dispatches, combines and gradients have.
func HookGrids(h spec.RowEngine) (blocks, threads [3]int) {
	for i, g := range h.(*handle).grids {
		blocks[i], threads[i] = g.blocks(), g.threads
	}
	return blocks, threads
}

// HookGraphedRoutings is how many of the idle Routings are written by graphs.
func HookGraphedRoutings(h spec.RowEngine) int { return len(h.(*handle).idle.Graphed) }
