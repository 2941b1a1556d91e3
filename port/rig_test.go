package port_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/port"
)

// kernelDir is where compiled kernels are, for all tests of a run.
var kernelDir string

func TestMain(m *testing.M) {
	var err error
	if kernelDir, err = os.MkdirTemp("", "weft-port-"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(kernelDir)
		os.Exit(code)
	}))
}

// A backend is what the tests run on: a network for each rail, or libfabric.
type backend struct {
	name     string
	networks []*fabrictest.Network
	fabric   fabric.Options // where there are no networks
	rails    int
	seed     uint64
	spread   bool // channels spread over all rails
	options  port.Options
	others   *port.Options // of all ranks but the first, if they are different
	memories [][]byte      // of the ranks, if they are not Go's
}

// backends are twins of every class with some seeds, alone and beside others, and what libfabric has between
// sockets.
func backends(seeds int) (all []func() backend) {
	add := func(spread bool, seed uint64, classes ...fabrictest.Class) {
		all = append(all, func() backend {
			b := backend{rails: len(classes), seed: seed, spread: spread, options: port.Options{Depth: 16, Spread: 500}}
			for i, c := range classes {
				b.name += c.Name + "+"
				b.networks = append(b.networks, fabrictest.New(c, seed*16+uint64(i)))
			}
			b.name = fmt.Sprintf("twin/%s/%d", b.name[:len(b.name)-1], seed)
			if len(classes) > 1 {
				b.name += map[bool]string{true: "/spread", false: "/apart"}[spread]
			}
			return b
		})
	}
	for seed := range uint64(seeds) {
		for _, class := range fabrictest.Classes() {
			add(false, seed, class)
		}
		add(true, seed, fabrictest.EFA(), fabrictest.EFA())
		add(true, seed, fabrictest.Verbs(), fabrictest.TCP(), fabrictest.EFA())
		add(false, seed, fabrictest.EFA(), fabrictest.RXM())
	}
	for _, name := range []string{"tcp", "tcp;ofi_rxm"} {
		all = append(all, func() backend {
			return backend{
				name: "libfabric/" + name, rails: 1,
				fabric: fabric.Options{Provider: name, Source: "127.0.0.1"},
			}
		})
	}
	return append(all, func() backend {
		return backend{
			name: "libfabric/tcp/two rails", rails: 2, spread: true, options: port.Options{Spread: 500},
			fabric: fabric.Options{Provider: "tcp", Source: "127.0.0.1"},
		}
	})
}

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

// onTwins runs a test where faults can be made.
func onTwins(t *testing.T, test func(*testing.T, backend)) {
	onBackends(t, func(t *testing.T, b backend) {
		if b.networks == nil {
			t.Skip("needs a twin, which fails when it is told to")
		}
		test(t, b)
	})
}

// A rank is a proxy with its peers, one memory, and channels by peer and signal.
type rank struct {
	*port.Proxy
	index   int
	memory  []byte
	local   *port.Memory
	remotes []*port.Remote
	peers   []*port.Peer
	domains []*fabric.Domain
	b       backend
}

// ranks opens and connects as many ranks, each with a memory of so many bytes.
func (b backend) ranks(t testing.TB, size, bytes int) []*rank {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if b.options.Timeout == 0 {
		b.options.Timeout = 30 * time.Second
	}
	all := make([]*rank, size)
	for i := range all {
		r := &rank{index: i, peers: make([]*port.Peer, size), b: b}
		if b.memories != nil {
			r.memory = b.memories[i]
		} else {
			r.memory = make([]byte, bytes)
		}
		r.remotes = make([]*port.Remote, size)
		for rail := range b.rails {
			r.domains = append(r.domains, b.open(ctx, t, i, size, rail))
		}
		o, err := b.options, error(nil)
		if b.others != nil && i > 0 {
			o = *b.others
		}
		if r.Proxy, err = port.New(o, r.domains...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		if r.local, err = r.Register(r.memory, 1); err != nil {
			t.Fatal(err)
		}
		all[i] = r
	}
	for _, n := range b.networks {
		t.Cleanup(func() {
			if err := n.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	each(t, all, func(r *rank) (err error) {
		for j, other := range all {
			if r.peers[j], err = r.Connect(ctx, j, other.Card()); err != nil {
				return err
			}
			if r.remotes[j], err = r.peers[j].Memory(other.local.Card()); err != nil {
				return err
			}
		}
		return nil
	})
	return all
}

func (b backend) open(ctx context.Context, t testing.TB, index, size, rail int) *fabric.Domain {
	t.Helper()
	o := b.fabric
	o.Rank, o.Size, o.Timeout = index, size, 30*time.Second
	var d *fabric.Domain
	if b.networks == nil {
		d = fabrictest.Libfabric(ctx, t, o)
	} else {
		var err error
		if d, err = b.networks[rail].Open(ctx, o); err != nil {
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

// channel makes a channel between the ranks' memories.
func (r *rank) channel(t testing.TB, to, signal int) *port.Channel {
	t.Helper()
	c, err := r.peers[to].Channel(port.ChannelOptions{Signal: signal, Spread: r.b.spread}, r.remotes[to], r.local)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// channels makes one to each rank, with the same signal.
func (r *rank) channels(t testing.TB, signal int) (all []*port.Channel) {
	t.Helper()
	for to := range r.peers {
		all = append(all, r.channel(t, to, signal))
	}
	return all
}

// each runs a function for all ranks at once.
func each(t testing.TB, all []*rank, f func(*rank) error) {
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

// names checks that an error is of a peer's operation, for a reason.
func names(t testing.TB, err error, rank int, op string, reason error) {
	t.Helper()
	failed, ok := errors.AsType[*port.PeerError](err)
	if !ok || failed.Rank != rank || op != "" && failed.Op != op || !errors.Is(err, reason) {
		t.Errorf("error %v, want one of %s and rank %d for %v", err, op, rank, reason)
	}
}
