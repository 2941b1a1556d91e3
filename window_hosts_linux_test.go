package weft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestWindowsOfHosts makes windows between hosts, allocated and registered: ranks of a host map each other's parts,
// and write into those of other hosts, again after a mask.
func TestWindowsOfHosts(t *testing.T) {
	const part = 1000
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			network := fabrictest.New(class, uint64(time.Now().UnixNano()))
			hosts := []string{"a", "b", "a", "c"}
			group := joinHosts(t, hosts, weft.WithFabric(network.Open))
			makes := map[string]func(c *weft.Comm) (*weft.Window, error){
				"allocated": func(c *weft.Comm) (*weft.Window, error) { return c.Alloc(testContext(t), 4*part) },
				"registered": func(c *weft.Comm) (*weft.Window, error) {
					fd, err := unix.MemfdCreate("caller", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
					if err == nil {
						err = unix.Ftruncate(fd, 4*part)
					}
					if err == nil {
						_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
					}
					if err != nil {
						return nil, err
					}
					return c.Register(testContext(t), fd, 4*part)
				},
			}
			signals := uint64(0)
			for what, create := range makes {
				windows := make([]*weft.Window, len(group))
				must(t, group, func(c *weft.Comm) (err error) {
					windows[c.Rank()], err = create(c)
					return err
				})
				signals++
				must(t, group, func(c *weft.Comm) error {
					return writeToAll(testContext(t), c, windows[c.Rank()], part, signals)
				})
				must(t, group, func(c *weft.Comm) error { return windows[c.Rank()].Close() })
				t.Log(what)
			}
			must(t, group, func(c *weft.Comm) error { // one of no bytes
				w, err := c.Alloc(testContext(t), 0)
				if err != nil {
					return err
				}
				for r := range group {
					if n := w.Remote(r).Bytes(); n != 0 {
						return fmt.Errorf("rank %d has %d bytes", r, n)
					}
				}
				return w.Close()
			})
			// A rank that leaves is no peer any more; the others make windows without it.
			if err := group[3].Close(); err != nil {
				t.Error(err)
			}
			rest := group[:3]
			must(t, rest, func(c *weft.Comm) error { return c.SetMask(testContext(t), 3) })
			signals++
			must(t, rest, func(c *weft.Comm) error {
				w, err := c.Alloc(testContext(t), 4*part)
				if err != nil {
					return err
				}
				if n := w.Remote(3).Bytes(); n != 0 {
					return fmt.Errorf("a rank that is masked has %d bytes", n)
				}
				return writeToAll(testContext(t), c, w, part, signals)
			})
			if err := network.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// writeToAll writes this rank's part of the window of every unmasked rank of another host, and waits for theirs.
func writeToAll(ctx context.Context, c *weft.Comm, w *weft.Window, part int, signals uint64) error {
	own, o := c.Rank(), c.Operations()
	mine := w.Bytes()[own*part:][:part]
	copy(mine, bytes.Repeat([]byte{byte(own + 1)}, part))
	far := func(r int) bool { return c.Host(r) != c.Host(own) && !c.Masked(r) }
	for r := range c.Size() {
		if (w.Peer(r) != nil) != (c.Host(r) == c.Host(own) && !c.Masked(r)) {
			return fmt.Errorf("rank %d maps rank %d: %t", own, r, w.Peer(r) != nil)
		}
		if !far(r) {
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
		if err := o.FabricPeer(r).Await(ctx, 9, signals); err != nil {
			return err
		}
		if got := w.Bytes()[r*part:][:part]; !bytes.Equal(got, bytes.Repeat([]byte{byte(r + 1)}, part)) {
			return fmt.Errorf("rank %d: %x from rank %d", own, got[:4], r)
		}
		if err := o.FabricPeer(r).Flush(ctx); err != nil {
			return err
		}
	}
	return o.VerifySame(ctx, "test", "written", nil)
}

// TestWindowOfHostsRefused: what one rank is refused, all are, and the communicator is whole.
func TestWindowOfHostsRefused(t *testing.T) {
	network := fabrictest.New(fabrictest.TCP(), 1)
	group, err := ranktest.JoinEach(3, func(rank int) []weft.Option {
		open := network.Open
		if rank == 1 {
			open = func(context.Context, fabric.Options) (*fabric.Domain, error) {
				return nil, fmt.Errorf("%w: no library", fabric.ErrUnsupported)
			}
		}
		return []weft.Option{weft.WithHostID(fmt.Sprint(rank / 2)), weft.WithFabric(open)}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ranktest.Close(group); err != nil {
			t.Error(err)
		}
	}()
	for r, err := range each(group, func(c *weft.Comm) error {
		_, err := c.Alloc(testContext(t), 10)
		return err
	}) {
		if !errors.Is(err, weft.ErrUnsupported) || group[r].Err() != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for r, err := range each(group, func(c *weft.Comm) error {
		_, err := c.Alloc(testContext(t), 10+c.Rank())
		return err
	}) {
		if !errors.Is(err, weft.ErrMismatch) || group[r].Err() != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestRegionsOfTheGone: a rank that its peers have lost, and left out, has a write underway, which does not land when
// the network is whole again. The others write to each other by new keys.
func TestRegionsOfTheGone(t *testing.T) {
	const size, gone = 1 << 12, 2
	for _, class := range fabrictest.Classes() {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(class.Name, seed), func(t *testing.T) {
				network := fabrictest.New(class, seed)
				group := joinHosts(t, []string{"a", "b", "c"}, weft.WithFabric(network.Open))
				windows := make([]*weft.Window, len(group))
				must(t, group, func(c *weft.Comm) (err error) {
					windows[c.Rank()], err = c.Alloc(testContext(t), size)
					return err
				})
				old := windows[0].Remote(1)
				network.Cut(0, gone)
				network.Cut(1, gone)
				own := windows[gone]
				for i := range own.Bytes() {
					own.Bytes()[i] = 0xaa
				}
				for r := range gone {
					p := group[gone].Operations().FabricPeer(r)
					if err := p.Write(testContext(t), own.Remote(r), 0, own.Region(), 0, size); err != nil {
						t.Fatal(err)
					}
				}
				rest := group[:gone]
				must(t, rest, func(c *weft.Comm) error {
					c.Operations().FabricPeer(gone).Fail(errors.New("nothing was heard of it"))
					return c.SetMask(testContext(t), gone)
				})
				if windows[0].Remote(1) == old {
					t.Error("the key is the same")
				}
				must(t, rest, func(c *weft.Comm) error {
					clear(windows[c.Rank()].Bytes()) // it is used anew
					return c.Operations().VerifySame(testContext(t), "test", "cleared", nil)
				})
				network.Heal(0, gone)
				network.Heal(1, gone)
				must(t, rest, func(c *weft.Comm) error {
					w, other := windows[c.Rank()], 1-c.Rank()
					p := c.Operations().FabricPeer(other)
					for i := range 50 {
						w.Bytes()[0] = byte(i)
						if err := errors.Join(p.Write(testContext(t), w.Remote(other), 8, w.Region(), 0, 1),
							p.Settle(testContext(t))); err != nil {
							return err
						}
					}
					return c.Operations().VerifySame(testContext(t), "test", "written", nil)
				})
				wantOnlyOthers(t, windows[:gone])
			})
		}
	}
}

// wantOnlyOthers wants in each window all that the other ranks wrote, and nothing of the one that is out.
func wantOnlyOthers(t *testing.T, windows []*weft.Window) {
	t.Helper()
	for r, w := range windows {
		if i := bytes.IndexByte(w.Bytes(), 0xaa); i >= 0 {
			t.Errorf("rank %d: byte %d of the one that is out has landed", r, i)
		}
		if got := w.Bytes()[8]; got != 49 {
			t.Errorf("rank %d: the other's last byte is %d", r, got)
		}
	}
}

// TestRegionsOfTheLate: a rank that is alive, and left out, has a write underway, and writes on by the keys that it
// knows. Nothing of it lands. The others go on, and are told that it is lost when they would take it back.
func TestRegionsOfTheLate(t *testing.T) {
	const size, late = 1 << 12, 2
	for _, class := range fabrictest.Classes() {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(class.Name, seed), func(t *testing.T) {
				network := fabrictest.New(class, seed)
				group := joinHosts(t, []string{"a", "b", "c"}, weft.WithFabric(network.Open))
				windows := make([]*weft.Window, len(group))
				must(t, group, func(c *weft.Comm) (err error) {
					windows[c.Rank()], err = c.Alloc(testContext(t), size)
					return err
				})
				own := windows[late]
				for i := range own.Bytes() {
					own.Bytes()[i] = 0xaa
				}
				flood := func() {
					for r := range late {
						p := group[late].Operations().FabricPeer(r)
						if err := p.Write(testContext(t), own.Remote(r), 0, own.Region(), 0, size); err != nil {
							t.Log("it writes: ", err)
						}
					}
				}
				half := class.Holds && seed%2 == 1 // of it has landed, and the rest goes where that is
				for r := range late {
					if half {
						network.CutAfter(r, late, 1)
					} else {
						network.Cut(r, late)
					}
				}
				flood()
				for r := range late {
					for half && bytes.IndexByte(windows[r].Bytes(), 0xaa) < 0 {
						time.Sleep(time.Millisecond)
					}
				}
				rest := group[:late]
				must(t, rest, func(c *weft.Comm) error {
					if err := c.SetMask(testContext(t), late); err != nil {
						return err
					}
					clear(windows[c.Rank()].Bytes()) // it is used anew
					return c.Operations().VerifySame(testContext(t), "test", "cleared", nil)
				})
				network.Heal(0, late)
				network.Heal(1, late)
				flood()
				writes := func(c *weft.Comm) error {
					w, other := windows[c.Rank()], 1-c.Rank()
					p := c.Operations().FabricPeer(other)
					for i := range 50 {
						w.Bytes()[0] = byte(i)
						if err := errors.Join(p.Write(testContext(t), w.Remote(other), 8, w.Region(), 0, 1),
							p.Settle(testContext(t))); err != nil {
							return err
						}
					}
					return c.Operations().VerifySame(testContext(t), "test", "written", nil)
				}
				must(t, rest, writes)
				for r, err := range each(group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) }) {
					failed, ok := errors.AsType[*weft.PeerError](err)
					if !ok || failed.Rank != late || !errors.Is(err, weft.ErrDied) || group[r].Err() == nil {
						t.Errorf("rank %d takes back what is lost: %v; %v", r, err, group[r].Err())
					}
				}
				must(t, rest, func(c *weft.Comm) error { return c.SetMask(testContext(t), late) })
				must(t, rest, writes)
				wantOnlyOthers(t, windows[:late])
			})
		}
	}
}

// TestTakenBackBetweenHosts masks ranks that are alive: one, the same again, one more, and then none. Who wrote nothing
// meanwhile writes by new keys, which all have, and into windows of before. Keys change when a rank is left out that
// has them, and when one is taken back.
func TestTakenBackBetweenHosts(t *testing.T) {
	const part = 1000
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			network := fabrictest.New(class, uint64(time.Now().UnixNano()))
			group := joinHosts(t, []string{"a", "b", "a", "c"}, weft.WithFabric(network.Open))
			windows, signals := make([]*weft.Window, len(group)), uint64(0)
			must(t, group, func(c *weft.Comm) (err error) {
				windows[c.Rank()], err = c.Alloc(testContext(t), 4*part)
				return err
			})
			for range 2 {
				for _, step := range []struct {
					masked []int
					renews bool
				}{{[]int{3}, true}, {[]int{3}, false}, {[]int{1, 3}, true}, {[]int{1, 3}, false}, {[]int{3}, true}, {nil, true}} {
					old, out := windows[1].Remote(0), weft.RankSet{}
					for _, r := range step.masked {
						out = out.With(r)
					}
					var rest []*weft.Comm
					for r, c := range group {
						if !out.Has(r) {
							rest = append(rest, c)
						}
					}
					own := windows[0].Card()
					must(t, rest, func(c *weft.Comm) error { return c.SetMask(testContext(t), step.masked...) })
					if renewed := !bytes.Equal(windows[0].Card(), own); renewed != step.renews {
						t.Errorf("without %v: keys are new: %t", step.masked, renewed)
					}
					if known := windows[1].Remote(0) == old; known != (out.Has(1) || !step.renews) {
						t.Errorf("without %v: rank 1 knows the keys of before: %t", step.masked, known)
					}
				}
				signals++
				must(t, group, func(c *weft.Comm) error {
					return writeToAll(testContext(t), c, windows[c.Rank()], part, signals)
				})
				for r, c := range group {
					if n := c.Retired(); n > 0 {
						t.Errorf("rank %d keeps %d aliases when all are back", r, n)
					}
				}
			}
			if err := network.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}
