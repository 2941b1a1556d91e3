package proxied

import (
	"errors"
	"math/bits"
	"sync"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/engine/gpu/proxy"
)

// packing is ranges of the GPU's memory, one after the other in pinned memory.
type packing struct {
	memory *cuda.HostMemory
	at     int // where the next one goes
	ranges []packed
}

type packed struct {
	gpu   cuda.Pointer
	at, n int
}

// add packs a range. One that goes on where the last one ended is a part of it.
func (p *packing) add(gpu cuda.Pointer, n int) {
	if n == 0 {
		return
	}
	if k := len(p.ranges) - 1; k >= 0 && p.ranges[k].ends(gpu, p.at) {
		p.ranges[k].n += n
	} else {
		p.ranges = append(p.ranges, packed{gpu, p.at, n})
	}
	p.at += n
}

// ends says whether the range ends at these places.
func (p packed) ends(gpu cuda.Pointer, at int) bool { return p.at+p.n == at && p.gpu.Add(p.n) == gpu }

// skip leaves room for a range that is not copied.
func (p *packing) skip(n int) { p.at += n }

// order orders the copies, to pinned memory or to the GPU, and awaits those to pinned memory.
func (p *packing) order(h *proxy.Hand, toHost bool) error {
	m, err := p.begin(h, toHost)
	if err == nil && toHost {
		err = h.Await(m)
	}
	return err
}

func (p *packing) begin(h *proxy.Hand, toHost bool) (m proxy.Mark, err error) {
	for _, r := range p.ranges {
		dst, src := p.memory.Pointer().Add(r.at), r.gpu
		if !toHost {
			dst, src = src, dst
		}
		if m, err = h.Copy(dst, src, r.n); err != nil {
			return 0, err
		}
	}
	return m, nil
}

// rooms are pinned memory for calls that are made whole. The last one is the largest; others stay, since graphs may
// know them, and to free them would wait for kernels.
type rooms struct {
	context *cuda.Context
	mu      sync.Mutex
	all     []*cuda.HostMemory
}

// least is the smallest room.
const least = 1 << 20

// of is a room of so many bytes.
func (r *rooms) of(n int, capturing bool, op string) (*cuda.HostMemory, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := len(r.all); k > 0 && r.all[k-1].Size() >= n {
		return r.all[k-1], nil
	}
	if capturing {
		return nil, weft.Unsupportedf("%s: it takes %d bytes of pinned memory, and a capture cannot make any; make the call "+
			"once before", op, n)
	}
	m, err := r.context.AllocHost(max(least, 1<<bits.Len(uint(n-1))), cuda.HostOptions{})
	if err != nil {
		return nil, err
	}
	r.all = append(r.all, m)
	return m, nil
}

func (r *rooms) close() error {
	var errs []error
	for _, m := range r.all {
		errs = append(errs, m.Close())
	}
	r.all = nil
	return errors.Join(errs...)
}
