package cuda

import (
	"slices"
	"sync"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// maxSpares is how many spare streams of the same options a device keeps at most: the hardware has
// no more queues than that for streams to be put into.
const maxSpares = 32

// spares are streams that were closed when nothing was left in them. The driver chooses a stream's
// hardware queue when it makes the stream, and once it has destroyed another one it may choose a
// queue that is in use although others are free. Streams in one queue wait for each other, and
// kernels that wait for each other across them do so for ever. So queues are assigned once, and
// streams go round, among all Contexts of the device.
type spares struct {
	mu       sync.Mutex
	contexts int // that are open
	streams  []spare
	word     sys.Pointer // memory that new streams fill, while a Context is open
}

type spare struct {
	options StreamOptions
	handle  sys.Stream
}

// put keeps a stream, if there is room and a later NewStream may use it.
func (p *spares) put(s spare) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := 0
	for _, other := range p.streams {
		if other.options == s.options {
			same++
		}
	}
	if p.contexts == 0 || same == maxSpares {
		return false // it would be neither destroyed nor reused
	}
	p.streams = append(p.streams, s)
	return true
}

// begin makes a new stream do its first work, for which the driver chooses its queue. A stream whose
// first work were a kernel that waits for another stream's could get the queue of that very stream,
// although others are free: on driver 580.159 four ranks that shared a GPU met so in four of ten
// processes.
func (p *spares) begin(c *Context, handle sys.Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.check("cuMemsetD8Async", c.table.MemsetD8Async(c.handle, p.word, 0, wordBytes, handle))
}

// take gives a stream of these options out, if there is one.
func (p *spares) take(o StreamOptions) (handle sys.Stream, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.streams, func(s spare) bool { return s.options == o })
	if i < 0 {
		return 0, false
	}
	handle = p.streams[i].handle
	p.streams = slices.Delete(p.streams, i, i+1)
	return handle, true
}

// wordBytes is the size of what new streams fill.
const wordBytes = 4

// open counts a Context. The first allocates what new streams fill: an allocation by NewStream would
// break another thread's capture.
func (p *spares) open(c *Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.contexts == 0 {
		word := new(sys.Pointer)
		if err := c.check("cuMemAlloc", c.table.MemAlloc(c.handle, word, wordBytes)); err != nil {
			return err
		}
		p.word = *word
	}
	p.contexts++
	return nil
}

// close gives out all that is left when the last Context closes.
func (p *spares) close() (left []spare, word sys.Pointer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.contexts--; p.contexts == 0 {
		left, p.streams = p.streams, nil
		word, p.word = p.word, 0
	}
	return left, word
}
