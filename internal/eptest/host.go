package eptest

import (
	"bytes"
	"context"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/ranktest"
)

// Host is the engine of ranks on the host.
type Host struct {
	*ranktest.Groups
	hosts []int // by rank; nil: all are of one
}

// NewHost makes an engine whose ranks are goroutines. Communicators are kept between calls of Ranks
// until Close.
func NewHost(options ...weft.Option) *Host {
	return &Host{Groups: ranktest.Goroutines("goroutines", func(int) []weft.Option { return options })}
}

// NewHosts makes an engine whose ranks are goroutines on hosts of the given names, a letter for each rank.
func NewHosts(names string, options ...weft.Option) *Host {
	g := ranktest.Goroutines("hosts "+names, func(rank int) []weft.Option {
		return append([]weft.Option{weft.WithHostID(names[rank:][:1])}, options...)
	})
	g.OfSizes(len(names))
	return &Host{Groups: g, hosts: hostsNamed(names)}
}

// hostsNamed numbers the hosts of ranks, of names of a letter, in the order in which they appear.
func hostsNamed(names string) (hosts []int) {
	var seen []byte
	for i := range len(names) {
		host := bytes.IndexByte(seen, names[i])
		if host < 0 {
			host, seen = len(seen), append(seen, names[i])
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// Hosts are those of the ranks, by rank; nil where all share memory.
func (h *Host) Hosts() []int { return h.hosts }

// NewHostRank makes the engine of a process that is one rank of several. The communicator stays the
// caller's.
func NewHostRank(c *weft.Comm) *Host {
	h := &Host{Groups: ranktest.Process("processes", c)}
	for r := range c.Size() {
		h.hosts = append(h.hosts, c.Host(r))
	}
	return h
}

// Kind implements [Engine].
func (h *Host) Kind() ep.Engine { return ep.HostEngine }

// Recycles implements [Engine].
func (h *Host) Recycles(ep.Layout) bool { return false }

// Alloc implements [Engine].
func (h *Host) Alloc(c *weft.Comm, size int, window bool) (Memory, error) {
	if !window {
		mem := make([]byte, size+64)
		return Memory{Data: unsafe.Pointer(unsafe.SliceData(mem)), Free: func() error { return nil }}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w, err := c.Alloc(ctx, size)
	if err != nil {
		return Memory{}, err
	}
	return Memory{Data: unsafe.Pointer(unsafe.SliceData(w.Bytes())), Free: w.Close}, nil
}

// Stream implements [Engine]: the host has none.
func (h *Host) Stream(*weft.Comm) *weft.Stream { return nil }

// Sync implements [Engine].
func (h *Host) Sync(*weft.Comm) error { return nil }

// Upload implements [Engine].
func (h *Host) Upload(_ *weft.Comm, dst unsafe.Pointer, src []byte) error {
	copy(unsafe.Slice((*byte)(dst), len(src)), src)
	return nil
}

// Download implements [Engine].
func (h *Host) Download(_ *weft.Comm, dst []byte, src unsafe.Pointer) error {
	copy(dst, unsafe.Slice((*byte)(src), len(dst)))
	return nil
}
