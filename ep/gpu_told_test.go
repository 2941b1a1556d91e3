package ep_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
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

// TestToldInAnyOrderOnEmulatedGPUs prepares token-major rows on one of two ranks. The other is played. It hears all
// that the first has to tell before it tells anything. What it tells arrives word by word, late, and in random order,
// after counts of its next prepare. In every other shape one of the two words of each selection comes long after the
// other. Until then the places of counts hold what another operation has left, and those of selections are empty or
// hold that too. It is the handle's first operation, and the one whose number has no lower bits.
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
		epoch := uint64(1)
		if i%3 == 2 {
			epoch = 1 << 32
		}
		t.Run(fmt.Sprintf("top-%d, %d blocks, operation %d", shape.topk, shape.blocks, epoch), func(t *testing.T) {
			s := sized(tokenRows, ranks)
			s.TopK, s.Experts, s.MaxTokens, s.Tuning.Dispatch.Blocks = shape.topk, 8*ranks, shape.most, shape.blocks
			s.SMs = 0
			c := routed(s, 1, shape.tokens, spread(s, uint64(i)))
			c.Weights = false
			b := c.Batch()
			members(t, m, ranks, s, gpuDeadline/6, func(ctx context.Context, r *member) error {
				round, err := b.Round(r.e, r.Comm, r.handle)
				if err := errors.Join(err, ep.SetEpoch(r.handle, epoch-1)); err != nil {
					return err
				}
				p := played{s: s, epoch: epoch, topk: c.TopK[1], told: ep.ToldBy(r.handle, 1, 0, epoch), last: i%2 == 0}
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
					err = p.prepare(ctx, ep.ToldBy(r.handle, 0, 1, epoch), c.TopK[0], ep.ToldBy(r.handle, 1, 0, epoch+1))
				} else if err = errors.Join(round.Prepare(ctx, r.stream), r.Wait(ctx, r.stream)); err == nil {
					err = round.Describe()
				}
				err = errors.Join(err, eptest.Meet(r.Comm))
				if err == nil && r.Rank() == 1 {
					err = p.ended(ep.ToldBy(r.handle, 0, 1, epoch))
				}
				return errors.Join(err, round.Free())
			})
		})
	}
}

// played is rank 1 of two, of which a test plays a prepare.
type played struct {
	s     ep.Spec
	epoch uint64 // of the prepare
	topk  []int32
	told  ep.Told // to rank 0
	last  bool    // selections are told last
}

func (p *played) local() int { return p.s.Experts / 2 }

// counts is how many counts a block tells.
func (p *played) counts() int { return 3 + p.local() + p.told.Words }

// selectionEpoch is the number that the words of selections carry.
func (p *played) selectionEpoch() uint64 { return max(p.epoch&math.MaxUint32, 1) }

func putWord(at unsafe.Pointer, epoch uint64, n int) {
	atomic.StoreUint64((*uint64)(at), epoch<<32|uint64(n))
}

// selections are those of a block that go to a rank: what they are, as a word says it.
func (p *played) selections(topk []int32, block, rank int) (words []int) {
	k, expert := bits.Len(uint(p.s.TopK-1)), bits.Len(uint(p.local()))
	from, to := p.share(topk, block)
	for i, e := range topk[from:to] {
		if e >= 0 && int(e)/p.local() == rank {
			words = append(words, (i/p.s.TopK<<k|i%p.s.TopK)<<expert|(int(e)%p.local()+1))
		}
	}
	return words
}

// place is where a word of the i-th selection stands that a block tells.
func place(told ep.Told, block, i, word int) unsafe.Pointer {
	return unsafe.Add(told.Selection(block, i), 8*word)
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
	for b := range p.told.Blocks {
		for i := range (p.s.MaxTokens + p.told.Blocks - 1) / p.told.Blocks * p.s.TopK {
			if i%2 == 0 { // a prepare empties places, but not if it fails
				putWord(place(p.told, b, i, 0), another, i%p.local()+1)
				putWord(place(p.told, b, i, 1), another, 7)
			}
		}
	}
}

// prepare looks at what rank 0 tells of its selections, and tells it all of rank 1's.
func (p *played) prepare(ctx context.Context, theirs ep.Told, topk []int32, next ep.Told) error {
	epoch, selections := p.epoch&math.MaxUint32, p.selectionEpoch()
	weight := int(math.Float32bits(1))
	for b := range p.told.Blocks { // rank 0 tells all before it awaits anything
		for i, want := range p.countsOf(topk, b, 1) {
			if n, err := awaitWord(ctx, theirs.Share(b, i), epoch); err != nil || n != want {
				return fmt.Errorf("count %d of block %d is told as %d, want %d (%v)", i, b, n, want, err)
			}
		}
		want, told := p.selections(topk, b, 1), []int(nil) // in the order of words
		for i := range want {
			what, err := awaitWord(ctx, place(theirs, b, i, 0), selections)
			n, late := awaitWord(ctx, place(theirs, b, i, 1), selections)
			if err := cmp.Or(err, late); err != nil || n != weight {
				return fmt.Errorf("selection %d of block %d is told with weight %#x (%v)", i, b, n, err)
			}
			told = append(told, what)
		}
		if slices.Sort(told); !slices.Equal(told, want) {
			return fmt.Errorf("block %d tells the selections %#x, want %#x", b, told, want)
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
	var last []func()
	for b := range p.told.Blocks {
		for i, n := range p.countsOf(p.topk, b, 0) {
			tell = append(tell, func() { putWord(p.told.Share(b, i), epoch, n) })
		}
		told := p.selections(p.topk, b, 0)
		rng.Shuffle(len(told), reflect.Swapper(told))
		for i, what := range told {
			words := []func(){
				func() { putWord(place(p.told, b, i, 0), selections, what) },
				func() { putWord(place(p.told, b, i, 1), selections, weight) },
			}
			if first := i % 2; p.last {
				tell, last = append(tell, words[first]), append(last, words[1-first])
			} else {
				tell = append(tell, words...)
			}
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
	for _, at := range rng.Perm(len(last)) {
		last[at]()
	}
	return nil
}

// ended looks at what rank 0's prepare leaves: no selection where rank 1 told one, and marks that have grown.
func (p *played) ended(theirs ep.Told) error {
	for b := range p.told.Blocks {
		for i := range p.selections(p.topk, b, 0) {
			for word := range 2 {
				if v := *(*uint64)(place(p.told, b, i, word)); v != 0 {
					return fmt.Errorf("word %d of selection %d of block %d is %#x when it has been taken", word, i, b, v)
				}
			}
		}
		if v := *(*uint32)(theirs.Mark(b)); v != uint32(p.epoch) {
			return fmt.Errorf("the mark of block %d is %d after operation %d", b, v, p.epoch)
		}
	}
	return nil
}

// awaitWord waits for a word of an operation, and gives its count.
func awaitWord(ctx context.Context, at unsafe.Pointer, epoch uint64) (int, error) {
	for {
		v := atomic.LoadUint64((*uint64)(at))
		if v>>32 == epoch {
			return int(uint32(v)), nil
		}
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
	}
}

// countsOf are the counts that a block tells a rank: tokens for each rank, selections of each expert there, bits, and
// how many selections it tells.
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
				counts[len(counts)-1]++
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
