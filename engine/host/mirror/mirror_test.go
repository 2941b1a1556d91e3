package mirror_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/engine/host/mirror"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
)

const (
	counters = 4
	dataAt   = counters * channel.Stride // of the ranges that values announce
	place    = 512                       // bytes for each counter
	pad      = dataAt + counters*place
	lines    = 8
)

func TestMain(m *testing.M) {
	if err := os.Setenv("WEFT_HEARTBEAT", "60s"); err != nil { // on a slow machine no host is lost for its silence
		panic(err)
	}
	os.Exit(m.Run())
}

// rank is a rank with its mirrors. It has one value of a counter underway at a time, as far as it knows.
type rank struct {
	comm    *weft.Comm
	mirrors *mirror.Mirrors
	values  [counters]uint64
	sent    map[int][counters]uint64 // numbers of items, by peer
}

// content is what a rank announces by a value of a counter.
func content(from, counter int, value uint64) []byte {
	b := make([]byte, 1+(int(value)*37+counter)%place)
	for i := range b {
		b[i] = byte(int(value)*3 + i + from*7 + counter)
	}
	return b
}

func (r *rank) peers() (far []int) {
	for p := range r.comm.Size() {
		if r.mirrors.Has(p) && !r.comm.Masked(p) {
			far = append(far, p)
		}
	}
	return far
}

// send announces the next value of a counter to all ranks of other hosts, once they have seen the one before.
func (r *rank) send(counter int) error {
	for _, p := range r.peers() {
		number := r.sent[p][counter]
		if err := r.until(p, func() bool { return r.mirrors.Sent(p, number) }); err != nil {
			return err
		}
	}
	r.values[counter]++
	value, own := r.values[counter], r.mirrors.Window.Bytes()
	bytes := content(r.comm.Rank(), counter, value)
	at := dataAt + counter*place
	copy(own[at:], bytes)
	binary.LittleEndian.PutUint64(own[counter*channel.Stride+channel.CounterBytes:], value^0x5555)
	for _, p := range r.peers() {
		all := r.sent[p]
		all[counter] = r.mirrors.Send(p, mirror.Item{
			Counter: counter * channel.Stride, Bytes: 8, Value: value, From: at, To: at + len(bytes),
		})
		r.sent[p] = all
	}
	return nil
}

func (r *rank) until(peer int, done func() bool) error {
	return r.comm.Operations().Waiter().Until(context.Background(), "test", peer, func() bool {
		r.mirrors.Pump()
		return done()
	})
}

// check looks at what a rank of another host has announced.
func (r *rank) check(peer, counter int, want uint64) error {
	mem := r.mirrors.Of(peer)
	c := channel.CounterAt(mem, counter*channel.Stride)
	if err := r.until(peer, func() bool { return c.Load() >= want }); err != nil {
		return err
	}
	value := c.Load()
	if value != want {
		return fmt.Errorf("counter %d of rank %d is %d, not %d", counter, peer, value, want)
	}
	if got := binary.LittleEndian.Uint64(mem[counter*channel.Stride+channel.CounterBytes:]); got != value^0x5555 {
		return fmt.Errorf("the bytes behind counter %d of rank %d are %#x for %d", counter, peer, got, value)
	}
	bytes := content(peer, counter, value)
	if got := mem[dataAt+counter*place:][:len(bytes)]; !slices.Equal(got, bytes) {
		return fmt.Errorf("what value %d of counter %d of rank %d announces differs", value, counter, peer)
	}
	return nil
}

func newRanks(t *testing.T, network *fabrictest.Network, hosts string) []*rank {
	t.Helper()
	comms, err := ranktest.JoinEach(len(hosts), func(rank int) []weft.Option {
		return []weft.Option{weft.WithHostID(hosts[rank:][:1]), weft.WithFabric(network.Open)}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ranktest.Close(comms); err != nil {
			t.Error(err)
		}
		if err := network.Check(); err != nil {
			t.Error(err)
		}
	})
	ranks := make([]*rank, len(comms))
	if err := ranktest.Each(comms, func(c *weft.Comm) error {
		m, err := mirror.New(t.Context(), c, "test", pad, lines)
		if err != nil {
			return err
		}
		ranks[c.Rank()] = &rank{comm: c, mirrors: m, sent: map[int][counters]uint64{}}
		return m.Settle("test")
	}); err != nil {
		t.Fatal(err)
	}
	return ranks
}

func each(t *testing.T, ranks []*rank, do func(r *rank) error) {
	t.Helper()
	var comms []*weft.Comm
	for _, r := range ranks {
		comms = append(comms, r.comm)
	}
	if err := ranktest.Each(comms, func(c *weft.Comm) error { return do(ranks[c.Rank()]) }); err != nil {
		t.Fatal(err)
	}
}

// TestMirrors: a value that shows in a mirror shows with all that it announces, on every network.
func TestMirrors(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Log("seed", seed)
			ranks := newRanks(t, fabrictest.New(class, seed), "abac")
			each(t, ranks, func(r *rank) error {
				random := rand.New(rand.NewPCG(seed, 1)) // the same on all ranks
				for i := range rounds {
					counter := random.IntN(counters)
					if err := r.send(counter); err != nil {
						return err
					}
					for _, p := range r.peers() {
						if err := r.check(p, counter, r.values[counter]); err != nil {
							return fmt.Errorf("round %d: %w", i, err)
						}
					}
					if err := r.until(0, func() bool { return r.mirrors.Waits() < 0 }); err != nil {
						return err
					}
					// A counter is announced anew when all have looked.
					if err := r.comm.Operations().VerifySame(t.Context(), "test", "seen", nil); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// TestRoom: more is sent than there are lines, to a rank that does not look; and both ways at once.
func TestRoom(t *testing.T) {
	for _, class := range fabrictest.Classes() {
		for _, both := range []bool{false, true} {
			t.Run(fmt.Sprint(class.Name, " both ", both), func(t *testing.T) {
				ranks := newRanks(t, fabrictest.New(class, uint64(time.Now().UnixNano())), "ab")
				const n = 20 * lines
				each(t, ranks, func(r *rank) error {
					peer := 1 - r.comm.Rank()
					if r.comm.Rank() == 0 || both {
						for v := range uint64(n) { // nobody moves anything meanwhile
							r.mirrors.Send(peer, mirror.Item{Counter: int(v%counters) * channel.Stride, Value: v + 1})
						}
						if r.mirrors.Waits() != peer {
							return fmt.Errorf("%d items found room in %d lines", n, lines)
						}
					}
					if r.comm.Rank() == 1 || both {
						for c := range uint64(counters) {
							counter := channel.CounterAt(r.mirrors.Of(peer), int(c)*channel.Stride)
							want := uint64(n - counters + 1 + c)
							if err := r.until(peer, func() bool { return counter.Load() == want }); err != nil {
								return err
							}
						}
					}
					return r.until(peer, func() bool { return r.mirrors.Waits() < 0 })
				})
			})
		}
	}
}

// TestSettle: what was not begun when ranks go on is dropped, what was comes, and all goes on.
func TestSettle(t *testing.T) {
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			ranks := newRanks(t, fabrictest.New(class, uint64(time.Now().UnixNano())), "aabb")
			for i := range 5 {
				each(t, ranks, func(r *rank) error {
					for _, p := range r.peers() {
						for v := range 3 * lines {
							r.mirrors.Send(p, mirror.Item{Value: uint64(100*i + v + 1), From: 0, To: pad})
						}
					}
					if err := r.comm.Operations().VerifySame(t.Context(), "test", "sent", nil); err != nil {
						return err
					}
					if err := r.comm.SetMask(t.Context()); err != nil {
						return err
					}
					return r.mirrors.Settle("test")
				})
				each(t, ranks, func(r *rank) error {
					if err := r.send(1); err != nil {
						return err
					}
					for _, p := range r.peers() {
						if err := r.check(p, 1, r.values[1]); err != nil {
							return err
						}
					}
					return r.until(0, func() bool { return r.mirrors.Waits() < 0 })
				})
			}
		})
	}
}
