package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A backend is a network on which the tests run.
type backend struct {
	name    string
	network *fabrictest.Network // nil for libfabric
	seed    uint64
	options fabric.Options
	class   fabrictest.Class
}

// backends are twins of every class, each with some seeds, and what libfabric has between sockets. Those
// that keep order also run without trust in it.
func backends(seeds int) (all []func() backend) {
	for _, class := range fabrictest.Classes() {
		for seed := range uint64(seeds) {
			all = append(all, func() backend {
				b := backend{
					name: fmt.Sprintf("twin/%s/%d", class.Name, seed), network: fabrictest.New(class, seed), seed: seed, class: class,
				}
				if b.options.Unordered = class.Name == "tcp" && seed%2 == 1; b.options.Unordered {
					b.name += "/unordered"
				}
				return b
			})
		}
	}
	for _, name := range []string{"tcp", "tcp;ofi_rxm"} {
		all = append(all, func() backend {
			return backend{name: "libfabric/" + name, options: fabric.Options{Provider: name, Source: "127.0.0.1"}}
		})
	}
	return append(all, func() backend {
		return backend{
			name:    "libfabric/tcp/unordered",
			options: fabric.Options{Provider: "tcp", Source: "127.0.0.1", Unordered: true},
		}
	})
}

// onBackends runs a test on all of them.
func onBackends(t *testing.T, test func(*testing.T, backend)) {
	seeds := 2
	if os.Getenv("WEFT_TEST_ALL") == "1" {
		seeds = 20
	}
	for _, make := range backends(seeds) {
		b := make()
		t.Run(b.name, func(t *testing.T) {
			t.Parallel() // they wait more than they compute
			test(t, b)
		})
	}
}

// onTwins runs it where faults can be made.
func onTwins(t *testing.T, test func(*testing.T, backend)) {
	onBackends(t, func(t *testing.T, b backend) {
		if b.network == nil {
			t.Skip("needs a twin, which fails when it is told to")
		}
		test(t, b)
	})
}

// A rank is a domain with its peers and one region.
type rank struct {
	*fabric.Domain
	index   int
	peers   []*fabric.Peer
	region  *fabric.Region
	memory  []byte
	remotes []fabric.Remote
}

// open opens the domain of one rank.
func (b backend) open(ctx context.Context, t *testing.T, index, size int) *fabric.Domain {
	t.Helper()
	o := b.options
	o.Rank, o.Size = index, size
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	var d *fabric.Domain
	if b.network == nil {
		d = fabrictest.Libfabric(ctx, t, o)
	} else {
		var err error
		if d, err = b.network.Open(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

// ranks opens and connects as many ranks, each with a region of so many bytes.
func (b backend) ranks(t *testing.T, size, bytes int) []*rank {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // whatever the options' timeout is
	defer cancel()
	all := make([]*rank, size)
	for i := range all {
		all[i] = &rank{Domain: b.open(ctx, t, i, size), index: i, peers: make([]*fabric.Peer, size)}
	}
	if b.network != nil {
		t.Cleanup(func() {
			if err := b.network.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, r := range all {
		r.memory = make([]byte, bytes)
		var err error
		if r.region, err = r.Register(r.memory, 1); err != nil {
			t.Fatal(err)
		}
	}
	each(t, all, func(r *rank) error {
		for j, other := range all {
			p, err := r.Connect(ctx, j, other.Card())
			if err != nil {
				return err
			}
			remote, err := p.Region(other.region.Card())
			if err != nil {
				return err
			}
			r.peers[j], r.remotes = p, append(r.remotes, remote)
		}
		return nil
	})
	return all
}

// each runs a function for all ranks at once.
func each(t *testing.T, all []*rank, f func(*rank) error) {
	t.Helper()
	var group sync.WaitGroup
	errs := make([]error, len(all))
	for i, r := range all {
		group.Go(func() { errs[i] = f(r) })
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
}

// pattern fills bytes by a seed.
func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*(2*seed+1) + seed + i>>8)
	}
}

// TestWrites: bytes of every length at odd places land where they should and nowhere else, before their signal.
func TestWrites(t *testing.T) {
	sizes := []int{0, 1, 3, 7, 8, 9, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 1<<16 + 5, 1 << 20}
	onBackends(t, func(t *testing.T, b backend) {
		const half = 1<<20 + 64
		all := b.ranks(t, 2, 2*half)
		for i, n := range sizes {
			for _, from := range all {
				to := all[1-from.index]
				at, offset := half+i%9, (i*5)%11
				pattern(from.memory[offset:][:n], i)
				clear(to.memory[half:])
				if err := from.peers[to.index].Write(t.Context(), from.remotes[to.index], at, from.region, offset, n); err != nil {
					t.Fatal(err)
				}
				if err := from.peers[to.index].Signal(t.Context(), 5); err != nil {
					t.Fatal(err)
				}
				if err := to.peers[from.index].Await(t.Context(), 5, uint64(i+1)); err != nil {
					t.Fatal(err)
				}
				want := make([]byte, half)
				copy(want[at-half:], from.memory[offset:][:n])
				if !slices.Equal(to.memory[half:], want) {
					t.Fatalf("%d bytes from %d to %d: other bytes arrived", n, offset, at)
				}
				if err := from.peers[to.index].Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestRounds: all ranks write to all, themselves too, round after round without a barrier. A signal
// covers all writes before it, and the reader's own signal says when its memory may be written again.
func TestRounds(t *testing.T) {
	const size, slot, writes = 3, 4096, 8
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	onBackends(t, func(t *testing.T, b backend) {
		// Two slots by parity for each source; then what is written from, by parity.
		all := b.ranks(t, size, 2*size*slot+2*slot)
		each(t, all, func(r *rank) error {
			ctx := t.Context()
			want := make([]byte, slot)
			for round := range rounds {
				parity := round % 2
				if round >= 2 { // what was written two rounds ago is read by then, and has left its source
					for _, p := range r.peers {
						if err := errors.Join(p.Await(ctx, 1, uint64(round-1)), p.Flush(ctx)); err != nil {
							return err
						}
					}
				}
				source := (2*size + parity) * slot
				pattern(r.memory[source:][:slot], r.index+round*size)
				for j, p := range r.peers {
					for w := range writes {
						n := slot / writes
						if err := p.Write(ctx, r.remotes[j], (2*r.index+parity)*slot+w*n, r.region, source+w*n, n); err != nil {
							return err
						}
					}
					if err := p.Signal(ctx, 0); err != nil {
						return err
					}
				}
				for j, p := range r.peers {
					if err := p.Await(ctx, 0, uint64(round+1)); err != nil {
						return err
					}
					pattern(want, j+round*size)
					if got := r.memory[(2*j+parity)*slot:][:slot]; !slices.Equal(got, want) {
						return fmt.Errorf("round %d: rank %d's signal came before its bytes", round, j)
					}
					if err := p.Signal(ctx, 1); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// TestGoroutines: many goroutines of a rank use the same peer, each with a signal and a place of its own.
func TestGoroutines(t *testing.T) {
	const workers, rounds, slot = 8, 30, 512
	onBackends(t, func(t *testing.T, b backend) {
		all := b.ranks(t, 2, 2*workers*slot)
		each(t, all, func(r *rank) error {
			other := 1 - r.index
			p, errs := r.peers[other], make([]error, workers)
			var group sync.WaitGroup
			for w := range workers {
				group.Go(func() {
					errs[w] = func() error {
						source, want := r.memory[(workers+w)*slot:][:slot], make([]byte, slot)
						for round := range rounds {
							pattern(source, w+round*workers+r.index)
							if err := errors.Join(
								p.Write(t.Context(), r.remotes[other], w*slot, r.region, (workers+w)*slot, slot),
								p.Signal(t.Context(), w),
								p.Await(t.Context(), w, uint64(2*round+1)),
							); err != nil {
								return err
							}
							pattern(want, w+round*workers+other)
							if !slices.Equal(r.memory[w*slot:][:slot], want) {
								return fmt.Errorf("worker %d, round %d: wrong bytes", w, round)
							}
							if err := errors.Join(p.Signal(t.Context(), w), p.Await(t.Context(), w, uint64(2*round+2)),
								p.Flush(t.Context())); err != nil {
								return err
							}
						}
						return nil
					}()
				})
			}
			group.Wait()
			return errors.Join(errs...)
		})
	})
}
