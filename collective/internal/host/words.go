package host

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/collective/spec"
)

// wordsOf are the words of a call for each of its ranks' parts.
func (c *call) wordsOf(rank int) []uint64 {
	t := c.given.Words.Of(c.Collective)
	n := t.Elems() / c.Comm.Size()
	return unsafe.Slice((*uint64)(t.Data), t.Elems())[rank*n:][:n]
}

// landed raises the progress words of the chunks of a part that end with its bytes [from, to), which have been
// written. Empty chunks end with the part.
func (c *call) landed(rank, from, to int) {
	if c.given.Words.Progress.IsZero() {
		return
	}
	words := c.wordsOf(rank)
	size := spec.Chunk(c.Bytes, len(words))
	for i := range words {
		if end := min((i+1)*size, c.Bytes); end > from && end <= to || c.Bytes == 0 {
			atomic.AddUint64(&words[i], 1)
		}
	}
}

// awaitReady waits until all chunks of the input are ready. Peers may read any of it when the operation opens.
func (c *call) awaitReady(ctx context.Context) error {
	if c.given.Words.Ready.IsZero() {
		return nil
	}
	live, i := 0, 0
	missing := func() string {
		r := c.Live[live]
		return fmt.Sprintf("of the %d ready words of its input's part for rank %d that of chunk %d is 0; what makes the "+
			"chunk raises it", len(c.wordsOf(r)), r, i)
	}
	err := c.Waiter().UntilOwn(ctx, c.name, missing, func() bool {
		for ; live < len(c.Live); live, i = live+1, 0 {
			for words := c.wordsOf(c.Live[live]); i < len(words); i++ {
				if atomic.LoadUint64(&words[i]) == 0 {
					return false
				}
			}
		}
		return true
	})
	if err != nil {
		return c.Comm.Operations().Fail(err)
	}
	return nil
}

// taken says that all chunks of the input have been read.
func (c *call) taken() {
	if c.given.Words.Ready.IsZero() {
		return
	}
	for _, r := range c.Live {
		for i, words := 0, c.wordsOf(r); i < len(words); i++ {
			atomic.StoreUint64(&words[i], 0)
		}
	}
}
