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

// open counts a Context.
func (p *spares) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.contexts++
}

// close gives out all that is left when the last Context closes.
func (p *spares) close() (left []spare) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.contexts--; p.contexts == 0 {
		left, p.streams = p.streams, nil
	}
	return left
}
