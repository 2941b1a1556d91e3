package weft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// A renewable is connected to all ranks of other hosts but those whose connections SetMask has ended. It fails once if
// it is told to.
type renewable struct {
	mu        sync.Mutex
	connected map[int]bool
	fails     string
	ended     []int
	resumed   int
}

var errRenewable = errors.New("it fails as it was told")

func (o *renewable) fail(at string) error {
	if o.fails != at {
		return nil
	}
	o.fails = ""
	return errRenewable
}

func (o *renewable) Reaches(rank int) (connected bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.connected[rank], nil
}

func (o *renewable) Settle(context.Context, func(int) bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fail("settle")
}

func (o *renewable) Renew(gone func(rank int) bool, _ uint32) (cards [][]byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := range o.connected {
		if gone(r) {
			o.ended = append(o.ended, r)
			delete(o.connected, r)
		}
	}
	return [][]byte{{1}}, o.fail("renew")
}

func (o *renewable) Take(int, []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fail("take")
}

func (o *renewable) Resume() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.resumed++
}

// spread is ranks of several hosts with a window, and an object with domains of its own.
type spread struct {
	t       *testing.T
	network *fabrictest.Network
	group   []*weft.Comm
	windows []*weft.Window
	objects []*renewable
}

const spreadSize = 1 << 12

func newSpread(t *testing.T, class fabrictest.Class, seed uint64, hosts ...string) *spread {
	s := &spread{t: t, network: fabrictest.New(class, seed)}
	s.group = joinHosts(t, hosts, weft.WithFabric(s.network.Open))
	s.windows, s.objects = make([]*weft.Window, len(hosts)), make([]*renewable, len(hosts))
	must(t, s.group, func(c *weft.Comm) (err error) {
		o := &renewable{connected: map[int]bool{}}
		for r := range c.Size() {
			if c.Host(r) != c.Host(c.Rank()) {
				o.connected[r] = true
			}
		}
		s.objects[c.Rank()] = o
		if s.windows[c.Rank()], err = c.Alloc(testContext(t), spreadSize); err != nil {
			return err
		}
		_, err = c.Operations().Renews(testContext(t), "test", o)
		return err
	})
	return s
}

// only are the ranks that are not in out.
func (s *spread) only(out ...int) (rest []*weft.Comm) {
	for r, c := range s.group {
		if !slices.Contains(out, r) {
			rest = append(rest, c)
		}
	}
	return rest
}

// flood has a rank write 0xaa into the windows of ranks of other hosts.
func (s *spread) flood(rank int) {
	own := s.windows[rank]
	copy(own.Bytes(), bytes.Repeat([]byte{0xaa}, spreadSize))
	for r := range s.group {
		if p := s.group[rank].Operations().FabricPeer(r); p != nil {
			if err := p.Write(testContext(s.t), own.Remote(r), 0, own.Region(), 0, spreadSize); err != nil {
				s.t.Log("it writes: ", err)
			}
		}
	}
}

// write has ranks write a byte into each other's windows, which are cleared, and nothing else is to be found there.
func (s *spread) write(ranks []*weft.Comm, value byte) {
	s.t.Helper()
	must(s.t, ranks, func(c *weft.Comm) error {
		clear(s.windows[c.Rank()].Bytes())
		return c.Operations().VerifySame(testContext(s.t), "test", "cleared", nil)
	})
	must(s.t, ranks, func(c *weft.Comm) (err error) {
		w, me := s.windows[c.Rank()], c.Rank()
		w.Bytes()[me] = value
		for r := range c.Size() {
			if p := c.Operations().FabricPeer(r); p != nil && !c.Masked(r) {
				err = errors.Join(err, p.Write(testContext(s.t), w.Remote(r), me, w.Region(), me, 1), p.Settle(testContext(s.t)))
			}
		}
		return errors.Join(err, c.Operations().VerifySame(testContext(s.t), "test", "written", nil))
	})
	for _, c := range ranks {
		for at, b := range s.windows[c.Rank()].Bytes() {
			want := byte(0)
			if slices.ContainsFunc(ranks, func(o *weft.Comm) bool {
				return o.Rank() == at && (at == c.Rank() || c.Host(at) != c.Host(c.Rank()))
			}) {
				want = value
			}
			if b != want {
				s.t.Fatalf("rank %d has %#x at %d, not %#x", c.Rank(), b, at, want)
			}
		}
	}
}

// lost fails the test unless the ranks cannot take back one of those that were left out.
func (s *spread) lost(ranks []*weft.Comm, rank int, masked ...int) {
	s.t.Helper()
	for i, err := range each(ranks, func(c *weft.Comm) error { return c.SetMask(testContext(s.t), masked...) }) {
		failed, ok := errors.AsType[*weft.PeerError](err)
		if !ok || failed.Rank != rank || !errors.Is(err, weft.ErrDied) || !strings.Contains(err.Error(), "left out") {
			s.t.Errorf("rank %d takes back rank %d, which is lost: %v", ranks[i].Rank(), rank, err)
		}
	}
}

// TestMaskFailsHalfWay fails SetMask after the ranks have agreed, at each of its steps. Called again, with the same
// mask or none, it does what is left, and nothing of a rank that is masked alive lands. Taking it back fails in the
// same way, and is done again.
func TestMaskFailsHalfWay(t *testing.T) {
	const late = 3
	for _, class := range fabrictest.Classes() {
		for _, step := range []string{"settle", "renew", "take"} {
			for _, does := range []string{"writes", "rests", "returns"} {
				t.Run(fmt.Sprintf("%s/%s/%s", class.Name, step, does), func(t *testing.T) {
					writes := does == "writes"
					s := newSpread(t, class, 7, "a", "b", "a", "c")
					s.network.Cut(0, late)
					if writes {
						s.flood(late)
					}
					rest := s.only(late)
					s.fails(rest, 1, step, late)
					if does == "returns" {
						s.network.Heal(0, late)
						must(t, s.group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
						s.write(s.group, 1)
						return
					}
					must(t, rest, func(c *weft.Comm) error { return c.SetMask(testContext(t), late) })
					s.write(rest, 1)
					s.network.Heal(0, late)
					if writes {
						s.flood(late)
					}
					s.write(rest, 2)
					if writes {
						s.lost(s.group, late)
						must(t, rest, func(c *weft.Comm) error { return c.SetMask(testContext(t), late) })
						s.write(rest, 3)
						return
					}
					for _, r := range []int{0, late} {
						s.fails(s.group, r, step)
					}
					must(t, s.group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
					s.write(s.group, 4)
					for r, o := range s.objects {
						want := []int{late}
						if r == late {
							want = []int{0, 1, 2}
						}
						if slices.Sort(o.ended); !slices.Equal(o.ended, want) {
							t.Errorf("rank %d has ended the connections of an object to %v", r, o.ended)
						}
					}
					must(t, s.group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
					s.write(s.group, 5)
					if err := s.network.Check(); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// fails has a SetMask fail at a step on one rank: some ranks may be through by then.
func (s *spread) fails(ranks []*weft.Comm, rank int, step string, masked ...int) {
	s.t.Helper()
	s.objects[rank].fails = step
	failed := false
	for i, err := range each(ranks, func(c *weft.Comm) error { return c.SetMask(testContext(s.t), masked...) }) {
		failed = failed || err != nil
		if ranks[i].Rank() == rank && !errors.Is(err, errRenewable) {
			s.t.Errorf("rank %d, which fails to %s: %v", rank, step, err)
		}
	}
	if !failed {
		s.t.Errorf("no rank fails to %s", step)
	}
}

// TestTwoOfTheLate masks two ranks at once, of which one writes on. Who is taken back with it is told of that one, and
// goes on with the others without it. Windows that are made meanwhile leave nothing behind.
func TestTwoOfTheLate(t *testing.T) {
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			s := newSpread(t, class, 11, "a", "b", "c", "d")
			rest := s.only(1, 3)
			must(t, rest, func(c *weft.Comm) error { return c.SetMask(testContext(t), 1, 3) })
			s.flood(3)
			s.write(rest, 1)
			must(t, rest, func(c *weft.Comm) error {
				before := c.Retired()
				w, err := c.Alloc(testContext(t), spreadSize)
				if err != nil {
					return err
				}
				if err := w.Close(); err != nil || c.Retired() != before {
					return fmt.Errorf("%d mappings are kept, not %d: %w", c.Retired(), before, err)
				}
				return nil
			})
			s.lost(s.group, 3)
			must(t, s.only(3), func(c *weft.Comm) error { return c.SetMask(testContext(t), 3) })
			s.write(s.only(3), 2)
			must(t, rest, func(c *weft.Comm) error { return c.SetMask(testContext(t), 1, 3) })
			s.write(rest, 3)
			must(t, s.only(3), func(c *weft.Comm) error { return c.SetMask(testContext(t), 3) })
			s.write(s.only(3), 4)
			s.flood(1)
		})
	}
}

// TestCloseInMask closes windows while the same ranks go from mask to mask. Nothing is kept when all are there again.
func TestCloseInMask(t *testing.T) {
	s := newSpread(t, fabrictest.TCP(), 13, "a", "b", "c")
	for range 10 {
		all := make([][]*weft.Window, len(s.group))
		for range 20 {
			must(t, s.group, func(c *weft.Comm) error {
				w, err := c.Alloc(testContext(t), 100)
				all[c.Rank()] = append(all[c.Rank()], w)
				return err
			})
		}
		var closing sync.WaitGroup
		for _, of := range all {
			closing.Go(func() {
				for _, w := range of {
					time.Sleep(100 * time.Microsecond) // so that SetMask is far
					if err := w.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		must(t, s.only(2), func(c *weft.Comm) error { return c.SetMask(testContext(t), 2) })
		must(t, s.group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
		closing.Wait()
	}
	must(t, s.group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
	for r, c := range s.group {
		if n := c.Retired(); n > 0 {
			t.Errorf("rank %d keeps %d mappings", r, n)
		}
	}
	s.write(s.group, 1)
}

// TestClosedWhileUnderway closes a window that a silent rank has yet to be written from, without any failure. Both of
// its mappings are kept, until a SetMask finds that all has landed.
func TestClosedWhileUnderway(t *testing.T) {
	if testing.Short() {
		t.Skip("Close waits 5 s for the silent rank")
	}
	s := newSpread(t, fabrictest.TCP(), 17, "a", "b")
	here := s.group[0]
	kept := func(want int) {
		t.Helper()
		if n := here.Retired(); n != want {
			t.Errorf("%d mappings are kept, not %d", n, want)
		}
	}
	s.network.Cut(0, 1)
	s.flood(0)
	if err := s.windows[0].Close(); err != nil {
		t.Fatal(err)
	}
	kept(2)
	s.network.Heal(0, 1)
	must(t, s.group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
	kept(0)
	for i, lost := range []bool{false, true} {
		must(t, s.group, func(c *weft.Comm) (err error) {
			s.windows[c.Rank()], err = c.Alloc(testContext(t), spreadSize)
			return err
		})
		if lost {
			here.Operations().FabricPeer(1).Fail(errors.New("nothing was heard of it"))
		}
		if err := s.windows[0].Close(); err != nil {
			t.Fatal(err)
		}
		kept(2 * i)
	}
	must(t, s.group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) }) // with who is lost nothing settles
	kept(2)
}
