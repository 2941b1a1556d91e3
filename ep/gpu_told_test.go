package ep_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestToldInAnyOrderOnEmulatedGPUs prepares token-major rows on one of two ranks. The other is played. What the first
// tells it is there in the order that it relies on, and what it tells the first arrives in any order that it may have:
// counts of its next prepare come before this one's, in random order, late and one by one; records come after all
// counts, and each block's mark after its records. Until then the places hold what another operation has left.
func TestToldInAnyOrderOnEmulatedGPUs(t *testing.T) {
	const ranks = 2
	m := emulatedAs(t, cudatest.Config{
		Devices: ranks, Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 132},
	}, emulate.Options{Limit: 2 * time.Minute, Seed: 1, Tear: true})
	for i, shape := range []struct {
		topk, blocks int
		most         int // tokens of a rank
		tokens       []int
	}{
		{4, 3, 100, []int{70, 100}},
		{3, 2, 100, []int{100, 99}},
		{8, 1, 100, []int{0, 65}},
		{12, 2, 100, []int{37, 41}},
		{1, 3, 100, []int{33, 0}},
		{1, 67, 67 * 64, []int{4200, 67*64 - 1}}, // the counts of a column are read in three rounds
	} {
		t.Run(fmt.Sprintf("top-%d, %d blocks", shape.topk, shape.blocks), func(t *testing.T) {
			s := sized(tokenRows, ranks)
			s.TopK, s.Experts, s.MaxTokens, s.Tuning.Dispatch.Blocks = shape.topk, 8*ranks, shape.most, shape.blocks
			s.SMs = 0
			c := routed(s, 1, shape.tokens, spread(s, uint64(i)))
			c.Weights = false
			b := c.Batch()
			var ended atomic.Bool
			members(t, m, ranks, s, gpuDeadline/6, func(ctx context.Context, r *member) error {
				round, err := b.Round(r.e, r.Comm, r.handle)
				if err != nil {
					return err
				}
				p := played{s: s, topk: c.TopK[1], told: ep.ToldBy(r.handle, 1, 0, 1)}
				if p.told.Blocks != shape.blocks {
					return fmt.Errorf("%d blocks have a share, want %d", p.told.Blocks, shape.blocks)
				}
				if r.Rank() == 1 {
					p.soil()
				}
				if err := eptest.Meet(r.Comm); err != nil {
					return err
				}
				if r.Rank() == 1 {
					err = p.prepare(ctx, ep.ToldBy(r.handle, 0, 1, 1), c.TopK[0], ep.ToldBy(r.handle, 1, 0, 2), &ended)
				} else {
					err = errors.Join(round.Prepare(ctx, r.stream), r.Wait(ctx, r.stream))
					ended.Store(true)
					err = errors.Join(err, round.Describe())
				}
				return errors.Join(err, eptest.Meet(r.Comm), round.Free())
			})
		})
	}
}

// played is rank 1 of two, whose first prepare a test plays.
type played struct {
	s    ep.Spec
	topk []int32
	told ep.Told // to rank 0
}

func (p *played) local() int { return p.s.Experts / 2 }

// counts is how many counts a block tells.
func (p *played) counts() int { return 2 + p.local() + p.told.Words }

func putWord(at unsafe.Pointer, epoch, n int) {
	atomic.StoreUint64((*uint64)(at), uint64(epoch)<<32|uint64(n))
}

// record is that of a selection, at a rank.
func (p *played) record(e int32, rank int) uint64 {
	if e < 0 || int(e)/p.local() != rank {
		return 0
	}
	return uint64(int(e)%p.local()+1) | uint64(math.Float32bits(1))<<32
}

// share is the range of a block's selections.
func (p *played) share(topk []int32, block int) (from, to int) {
	n := len(topk) / p.s.TopK
	return n * block / p.told.Blocks * p.s.TopK, n * (block + 1) / p.told.Blocks * p.s.TopK
}

// soil leaves what another operation may have left.
func (p *played) soil() {
	const another = math.MaxUint32
	putWord(p.told.Tokens, another, 3)
	for b := range p.told.Blocks {
		for i := range p.counts() {
			putWord(p.told.Share(b, i), another, 9)
		}
	}
	for i := range p.s.MaxTokens * p.s.TopK {
		atomic.StoreUint64((*uint64)(unsafe.Add(p.told.Records, 8*i)), uint64(i%p.local()+1)|7<<32)
	}
}

// prepare looks at what rank 0 tells of its selections, and tells it all of rank 1's.
func (p *played) prepare(ctx context.Context, theirs ep.Told, topk []int32, next ep.Told, ended *atomic.Bool) error {
	const epoch = 1
	for b := range p.told.Blocks { // rank 0 tells all before it awaits anything
		for atomic.LoadUint32((*uint32)(theirs.Mark(b))) != epoch {
			if err := context.Cause(ctx); err != nil {
				return err
			}
		}
		for i, n := range p.countsOf(topk, b, 1) {
			if got := atomic.LoadUint64((*uint64)(theirs.Share(b, i))); got != epoch<<32|uint64(n) {
				return fmt.Errorf("count %d of block %d is told as %#x, want %d, when the block's mark is there", i, b, got, n)
			}
		}
		from, to := p.share(topk, b)
		for i := from; i < to; i++ {
			got := atomic.LoadUint64((*uint64)(unsafe.Add(theirs.Records, 8*i)))
			if want := p.record(topk[i], 1); got != want {
				return fmt.Errorf("selection %d is told as %#x, want %#x, when its block's mark is there", i, got, want)
			}
		}
	}

	putWord(next.Tokens, epoch+1, 5)
	for b := range next.Blocks {
		for i := range p.counts() {
			putWord(next.Share(b, i), epoch+1, 77)
		}
	}
	rng := rand.New(rand.NewPCG(uint64(len(p.topk)), 1))
	tell := []func(){func() { putWord(p.told.Tokens, epoch, len(p.topk)/p.s.TopK) }}
	for b := range p.told.Blocks {
		for i, n := range p.countsOf(p.topk, b, 0) {
			tell = append(tell, func() { putWord(p.told.Share(b, i), epoch, n) })
		}
	}
	for i, at := range rng.Perm(len(tell)) {
		if i%9 == 0 {
			time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
		}
		tell[at]()
	}
	const prepare = 1 // the call's tag
	for i, v := range []uint32{0, 0, prepare, 0} {
		atomic.StoreUint32((*uint32)(unsafe.Add(p.told.Opening, 4*i)), v)
	}
	time.Sleep(20 * time.Millisecond) // it knows all counts

	for _, b := range rng.Perm(p.told.Blocks) {
		if ended.Load() {
			return errors.New("the prepare has ended before all of it came")
		}
		from, to := p.share(p.topk, b)
		for i := from; i < to; i++ {
			atomic.StoreUint64((*uint64)(unsafe.Add(p.told.Records, 8*i)), p.record(p.topk[i], 0))
		}
		time.Sleep(3 * time.Millisecond)
		atomic.StoreUint32((*uint32)(p.told.Mark(b)), epoch)
	}
	return nil
}

// countsOf are the counts that a block tells a rank: tokens for each rank, selections of each expert there, and bits.
func (p *played) countsOf(topk []int32, block, to int) []int {
	counts := make([]int, p.counts())
	first, end := p.share(topk, block)
	for at := first; at < end; at += p.s.TopK {
		goes := [2]bool{}
		for _, e := range topk[at : at+p.s.TopK] {
			if e < 0 {
				continue
			}
			rank := int(e) / p.local()
			if goes[rank] = true; rank == to {
				counts[2+int(e)%p.local()]++
			}
		}
		for rank, does := range goes {
			if does {
				counts[rank]++
			}
		}
		if t := (at - first) / p.s.TopK; goes[to] {
			counts[2+p.local()+t/32] |= 1 << (t % 32)
		}
	}
	return counts
}
