package weft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestGPUWindowsOfHosts makes windows of GPUs between hosts. Ranks of a host map each other's segments, others reach
// them by the network: themselves, where it reaches memory of GPUs, else a copy in pinned memory, which is said once.
func TestGPUWindowsOfHosts(t *testing.T) {
	direct := fabrictest.Verbs()
	direct.Devices = true
	dmaBufs := direct
	dmaBufs.DMABufs = true
	for _, tc := range []struct {
		name       string
		class      fabrictest.Class
		attributes map[cuda.Attribute]int
		refuse     string // a call of the driver's that fails once
		why        string // windows are staged
	}{
		{name: "tcp", class: fabrictest.TCP(), why: "provider tcp reaches no memory of GPUs"},
		{name: "efa", class: fabrictest.EFA(), why: "provider efa reaches no memory of GPUs"},
		{name: "by address", class: direct},
		{name: "dma-buf", class: dmaBufs, attributes: map[cuda.Attribute]int{cuda.DMABuf: 1}},
		{name: "no dma-buf", class: dmaBufs, why: "memory of a GPU without a dma-buf"},
		{
			name: "one fails", class: dmaBufs, attributes: map[cuda.Attribute]int{cuda.DMABuf: 1},
			refuse: "cuMemGetHandleForAddressRange", why: "without a dma-buf",
		},
		{
			name: "no RDMA", class: dmaBufs, attributes: map[cuda.Attribute]int{cuda.GPUDirectRDMA: 0},
			why: "lets no network adapter reach its memory",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const part = 1000
			network := fabrictest.New(tc.class, 3)
			g := ranktest.Fake(t, cudatest.Config{Devices: 4, Attributes: tc.attributes})
			var log lockedBuffer
			logger := weft.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
			group := joinGPUHosts(t, g, network, []string{"a", "b", "a", "b"}, logger)
			if tc.refuse != "" {
				g.Machine.Fail(tc.refuse, 2, cuda.ErrNotSupported)
			}
			for i, alloc := range []bool{true, true, false} {
				staged := tc.why != "" && (tc.refuse == "" || i == 0)
				must(t, group, func(c *weft.Comm) error {
					w, free, err := gpuWindow(t.Context(), c, 4*part, alloc)
					if err != nil {
						return err
					}
					if (w.Staging() != nil) != staged {
						return fmt.Errorf("staged: %t", w.Staging() != nil)
					}
					return errors.Join(writeGPUs(t.Context(), c, w, part, uint64(i+1)), w.Close(), free())
				})
			}
			must(t, group, func(c *weft.Comm) error { // one of no bytes
				w, err := c.Alloc(t.Context(), 0)
				if err != nil {
					return err
				}
				return errors.Join(w.Stage(t.Context(), nil, 0, 0), w.Land(t.Context(), nil, 0, 0), w.Close())
			})
			if n := strings.Count(log.String(), "staged through pinned memory"); n != min(1, len(tc.why)) ||
				!strings.Contains(log.String(), tc.why) {
				t.Errorf("said %d times: %s", n, log.String())
			}
		})
	}
}

// joinGPUHosts makes goroutine ranks with a GPU each, of which each takes its host for one of the given name. The first
// has more options.
func joinGPUHosts(t *testing.T, g *ranktest.GPUs, network *fabrictest.Network, hosts []string, first ...weft.Option,
) []*weft.Comm {
	t.Helper()
	t.Setenv("WEFT_HEARTBEAT", "60s") // on a machine that is slow no host is lost for its silence
	group, err := ranktest.JoinEach(len(hosts), func(rank int) []weft.Option {
		o := append(g.Options(rank), weft.WithHostID(hosts[rank]), weft.WithFabric(network.Open))
		if rank == 0 {
			o = append(o, first...)
		}
		return o
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ranktest.Close(group), network.Check()); err != nil {
			t.Error(err)
		}
	})
	return group
}

// TestTakenBackBetweenGPUs masks a rank that is alive, and takes it back: all write into windows of before, whose
// staging has moved. Where the driver pins no memory files that cannot move, and the rank is lost.
func TestTakenBackBetweenGPUs(t *testing.T) {
	const part, late = 1000, 3
	for _, class := range []fabrictest.Class{fabrictest.TCP(), fabrictest.EFA()} {
		for _, refused := range []bool{false, true} {
			t.Run(fmt.Sprint(class.Name, refused), func(t *testing.T) {
				network := fabrictest.New(class, 4)
				g := ranktest.Fake(t, cudatest.Config{Devices: 4})
				hosts := []string{"a", "b", "a", "c"}
				group := joinGPUHosts(t, g, network, hosts)
				for range hosts {
					if refused {
						g.Machine.Fail("cuMemHostRegister", 0, cuda.ErrNotSupported)
					}
				}
				windows := make([]*weft.Window, len(group))
				must(t, group, func(c *weft.Comm) (err error) {
					windows[c.Rank()], err = c.Alloc(t.Context(), 4*part)
					return err
				})
				write := func(c *weft.Comm) error { return writeGPUs(t.Context(), c, windows[c.Rank()], part, 1) }
				must(t, group[:late], func(c *weft.Comm) error { return c.SetMask(t.Context(), late) })
				errs := each(group, func(c *weft.Comm) error { return c.SetMask(t.Context()) })
				if !refused {
					if err := errors.Join(errs...); err != nil {
						t.Fatal(err)
					}
					must(t, group, write)
					return
				}
				for r, err := range errs {
					if failed, ok := errors.AsType[*weft.PeerError](err); !ok || failed.Rank != late {
						t.Errorf("rank %d: %v", r, err)
					}
				}
				must(t, group[:late], func(c *weft.Comm) error { return c.SetMask(t.Context(), late) })
			})
		}
	}
}

// lockedBuffer is a log that goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// gpuWindow makes a window of memory of its own, or of the caller's, which free frees.
func gpuWindow(ctx context.Context, c *weft.Comm, size int, alloc bool) (*weft.Window, func() error, error) {
	if alloc {
		w, err := c.Alloc(ctx, size)
		return w, func() error { return nil }, err
	}
	v, err := c.Device().Context().AllocVirtual(size, cuda.AllocationOptions{Share: cuda.ShareFD})
	if err != nil {
		return nil, nil, err
	}
	w, err := c.RegisterDevice(ctx, v.Pointer(), size)
	return w, v.Close, err
}

// writeGPUs writes this rank's part of the window of every rank of another host, from its own, and waits for theirs. It
// reads those of its own host.
func writeGPUs(ctx context.Context, c *weft.Comm, w *weft.Window, part int, signals uint64) error {
	own, o, gpu := c.Rank(), c.Operations(), c.Device().Context()
	if err := errors.Join(gpu.Upload(w.Pointer().Add(own*part), bytes.Repeat([]byte{byte(own + 1)}, part)),
		w.Stage(ctx, nil, own*part, part), o.VerifySame(ctx, "test", "filled", nil)); err != nil {
		return err
	}
	far := func(r int) bool { return c.Host(r) != c.Host(own) }
	for r := range c.Size() {
		if (w.PeerPointer(r) == 0) != far(r) || (w.Remote(r).Bytes() == w.Size()) != far(r) {
			return fmt.Errorf("rank %d maps rank %d at %v, and reaches %d bytes", own, r, w.PeerPointer(r),
				w.Remote(r).Bytes())
		}
		got := make([]byte, part)
		if !far(r) {
			if err := gpu.Download(got, w.PeerPointer(r).Add(r*part)); err != nil {
				return err
			}
			if !bytes.Equal(got, bytes.Repeat([]byte{byte(r + 1)}, part)) {
				return fmt.Errorf("rank %d: %x of rank %d", own, got[:4], r)
			}
			continue
		}
		p := o.FabricPeer(r)
		if err := errors.Join(p.Write(ctx, w.Remote(r), own*part, w.Region(), own*part, part),
			p.Signal(ctx, 9)); err != nil {
			return err
		}
	}
	for r := range c.Size() {
		if !far(r) {
			continue
		}
		got := make([]byte, part)
		if err := errors.Join(o.FabricPeer(r).Await(ctx, 9, signals), w.Land(ctx, nil, r*part, part),
			gpu.Download(got, w.Pointer().Add(r*part)), o.FabricPeer(r).Flush(ctx)); err != nil {
			return err
		}
		if !bytes.Equal(got, bytes.Repeat([]byte{byte(r + 1)}, part)) {
			return fmt.Errorf("rank %d: %x from rank %d", own, got[:4], r)
		}
	}
	for _, bad := range [][2]int{{-1, 1}, {0, -1}, {w.Size(), 1}, {1, w.Size()}} {
		if err := w.Stage(ctx, nil, bad[0], bad[1]); !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("%d bytes at %d staged: %w", bad[1], bad[0], err)
		}
		if err := w.Land(ctx, nil, bad[0], bad[1]); !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("%d bytes at %d landed: %w", bad[1], bad[0], err)
		}
	}
	return o.VerifySame(ctx, "test", "written", nil)
}

// TestHostMemoryOfGPURanks: operations of ranks on GPUs have windows of host memory, and near ones of GPUs that no
// other host reaches.
func TestHostMemoryOfGPURanks(t *testing.T) {
	network := fabrictest.New(fabrictest.TCP(), 3)
	g := ranktest.Fake(t, cudatest.Config{Devices: 3})
	group := joinGPUHosts(t, g, network, []string{"a", "b", "b"})
	must(t, group, func(c *weft.Comm) error {
		w, err := c.Operations().AllocHost(t.Context(), 300)
		if err != nil {
			return err
		}
		near, err := c.Operations().AllocNear(t.Context(), 300)
		if err != nil {
			return err
		}
		for r := range 3 {
			if far := c.Host(r) != c.Host(c.Rank()); (near.PeerPointer(r) == 0) != far || (w.Peer(r) == nil) != far {
				return fmt.Errorf("rank %d at %v and %p", r, near.PeerPointer(r), w.Peer(r))
			}
			if n := near.Remote(r).Bytes(); n != 0 {
				return fmt.Errorf("rank %d has %d bytes", r, n)
			}
		}
		if _, err := c.Operations().AllocDevice(t.Context(), 300); !errors.Is(err, weft.ErrUnsupported) {
			return fmt.Errorf("memory that all ranks map: %w", err)
		}
		return errors.Join(writeToAll(t.Context(), c, w, 100, 1), w.Close(), near.Close())
	})
}

// TestHalfReceived: bytes of another host are half received when a window of a GPU is closed after a failure. The
// memory in which the rest lands stays until the communicator is closed, or SetMask has found that it has landed. Where
// all is well it is freed at once, and so is what a memory file has, or what an adapter would need a key to write to.
func TestHalfReceived(t *testing.T) {
	direct, adapter := fabrictest.TCP(), fabrictest.Verbs()
	direct.Devices, adapter.Devices = true, true
	for _, memory := range []struct {
		name    string
		class   fabrictest.Class
		refused string // a call of the driver's that fails
		freed   string // one that frees the memory
		kept    bool   // until then
	}{
		{"memory file", fabrictest.TCP(), "", "cuMemHostUnregister", false},
		{"pinned memory", fabrictest.TCP(), "cuMemHostRegister", "cuMemFreeHost", true},
		{"memory of the GPU", direct, "", "cuMemRelease", true},
		{"memory of the GPU by an adapter", adapter, "", "cuMemRelease", false},
	} {
		for _, tc := range []struct {
			name string
			fail func(t *testing.T, group []*weft.Comm) error // of rank 0; nil: nothing is underway
		}{
			{"all is well", nil},
			{"aborted", func(_ *testing.T, group []*weft.Comm) error {
				group[0].Abort()
				return nil
			}},
			{"resumed", func(t *testing.T, group []*weft.Comm) error {
				group[0].Abort()
				return ranktest.Each(group, func(c *weft.Comm) error { return c.SetMask(t.Context()) })
			}},
			{"lost", func(_ *testing.T, group []*weft.Comm) error {
				group[0].Operations().FabricPeer(1).Fail(errors.New("nothing was heard of it"))
				return nil
			}},
			{"masked", func(t *testing.T, group []*weft.Comm) error { return group[0].SetMask(t.Context(), 1) }},
			{"closed with the communicator", func(_ *testing.T, group []*weft.Comm) error {
				return group[0].Operations().Leave()
			}},
		} {
			t.Run(memory.name+"/"+tc.name, func(t *testing.T) {
				const size = 1 << 16
				network := fabrictest.New(memory.class, 3)
				g := ranktest.Fake(t, cudatest.Config{Devices: 2})
				group := joinGPUHosts(t, g, network, []string{"a", "b"})
				alloc := func(c *weft.Comm) (*weft.Window, error) {
					if memory.refused != "" {
						g.Machine.Fail(memory.refused, 0, cuda.ErrNotSupported)
					}
					return c.Alloc(t.Context(), size)
				}
				windows := make([]*weft.Window, len(group))
				must(t, group, func(c *weft.Comm) (err error) {
					windows[c.Rank()], err = alloc(c)
					return err
				})
				into, here, far := windows[0], group[0], 1
				seen := func() bool { // bytes that have landed
					got := into.Staging()
					if got == nil {
						got = make([]byte, size)
						if err := here.Device().Context().Download(got, into.Pointer()); err != nil {
							t.Fatal(err)
						}
					}
					return bytes.IndexByte(got, 0xaa) >= 0
				}
				if tc.fail != nil {
					own := windows[far]
					if err := errors.Join(
						group[far].Device().Context().Upload(own.Pointer(), bytes.Repeat([]byte{0xaa}, size)),
						own.Stage(t.Context(), nil, 0, size),
					); err != nil {
						t.Fatal(err)
					}
					network.CutAfter(0, far, 3)
					p := group[far].Operations().FabricPeer(0)
					if err := p.Write(t.Context(), own.Remote(0), 0, own.Region(), 0, size); err != nil {
						t.Fatal(err)
					}
					for !seen() {
						time.Sleep(time.Millisecond)
					}
					if err := tc.fail(t, group); err != nil {
						t.Fatal(err)
					}
				}
				before := g.Machine.Calls(memory.freed)
				freed := func(want bool) {
					t.Helper()
					if freed := g.Machine.Calls(memory.freed) > before; freed != want {
						t.Fatalf("the memory is freed: %t", freed)
					}
				}
				if err := into.Close(); err != nil {
					t.Fatal(err)
				}
				freed(tc.fail == nil || !memory.kept)
				network.Heal(0, far)
				if tc.fail != nil { // the rest lands where it did no harm
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					_ = group[far].Operations().FabricPeer(0).Flush(ctx)
				}
				switch tc.name {
				case "aborted", "resumed": // all are there again
					if memory.class.Name != "tcp" { // a write without a key has ended the connection
						return
					}
					must(t, group, func(c *weft.Comm) error { return c.SetMask(t.Context()) })
					freed(true)
					if n := here.Retired(); n > 0 {
						t.Errorf("%d pieces of memory are kept", n)
					}
				case "masked":
				default:
					return
				}
				left := group[:1]
				if tc.name != "masked" {
					left = group
				}
				must(t, left, func(c *weft.Comm) (err error) { // of those that are left: nobody else knows it
					windows[c.Rank()], err = alloc(c)
					return err
				})
				before = g.Machine.Calls(memory.freed)
				if err := windows[0].Close(); err != nil {
					t.Fatal(err)
				}
				freed(true)
			})
		}
	}
}
