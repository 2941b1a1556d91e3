package weft_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/internal/ranktest"
)

// joinHosts makes goroutine ranks, of which each takes its host for one of the given name.
func joinHosts(t testing.TB, hosts []string, options ...weft.Option) []*weft.Comm {
	t.Helper()
	t.Setenv("WEFT_HEARTBEAT", "60s") // on a machine that is slow no host is lost for its silence
	group, err := ranktest.JoinEach(len(hosts), func(rank int) []weft.Option {
		return append(slices.Clone(options), weft.OnHost(hosts[rank]))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ranktest.Close(group); err != nil {
			t.Error(err)
		}
	})
	return group
}

// TestHosts joins ranks of several hosts, in any order. They gather, mask, abort and go on as on one.
func TestHosts(t *testing.T) {
	for _, hosts := range [][]string{
		{"a", "b"}, {"a", "a", "b", "b"}, {"a", "b", "a", "b", "c"}, {"a", "b", "c", "d", "e", "e"},
	} {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) {
			group := joinHosts(t, hosts, weft.WithDeadline(30*time.Second))
			n := len(group)
			numbers := map[string]int{}
			for r, c := range group {
				if _, ok := numbers[hosts[r]]; !ok {
					numbers[hosts[r]] = len(numbers)
				}
				local := 0
				for p := range hosts {
					if hosts[p] == hosts[r] {
						local++
					}
					if want := numbers[hosts[p]]; p <= r && c.Host(p) != want {
						t.Errorf("rank %d takes rank %d's host for %d, not %d", r, p, c.Host(p), want)
					}
				}
				if c.LocalSize() != local {
					t.Errorf("rank %d: %d local ranks, not %d", r, c.LocalSize(), local)
				}
			}
			must(t, group, func(c *weft.Comm) error {
				for i := range 20 {
					if err := c.Operations().VerifySame(testContext(t), "test", fmt.Sprint(i), nil); err != nil {
						return err
					}
				}
				return nil
			})
			for r, err := range each(group, func(c *weft.Comm) error {
				_, err := c.RegisterMemory(testContext(t), make([]byte, 100))
				return err
			}) {
				if !errors.Is(err, weft.ErrUnsupported) || group[r].Err() != nil {
					t.Errorf("rank %d registers plain memory between hosts: %v", r, err)
				}
			}
			for r, err := range each(group, func(c *weft.Comm) error {
				if c.Rank() == n-1 {
					c.Abort()
					return c.Err()
				}
				return c.Operations().VerifySame(testContext(t), "test", "never", nil)
			}) {
				blames(t, r, err, n-1, weft.ErrAborted)
			}
			must(t, group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
			if n > 2 {
				must(t, group[1:], func(c *weft.Comm) error { return c.SetMask(testContext(t), 0) })
				var others []int
				for r := range n - 1 {
					others = append(others, r+1)
				}
				if err := group[0].SetMask(testContext(t), others...); !errors.Is(err, weft.ErrMasked) {
					t.Errorf("the one that is left out goes on: %v", err)
				}
				must(t, group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
			}
			must(t, group, func(c *weft.Comm) error {
				return c.Operations().VerifySame(testContext(t), "test", "together", nil)
			})
			if err := group[n-1].Close(); err != nil {
				t.Error(err)
			}
			rest := group[:n-1]
			for r, err := range each(rest, func(c *weft.Comm) error {
				return c.Operations().VerifySame(testContext(t), "test", "left", nil)
			}) {
				blames(t, r, err, n-1, weft.ErrLeft)
			}
			must(t, rest, func(c *weft.Comm) error { return c.SetMask(testContext(t), n-1) })
		})
	}
}

// TestSetMaskDifferentSets has ranks call with different sets: nobody goes on with a set that others do not have, all
// say the same before the deadline, also who comes late, and the next call succeeds.
func TestSetMaskDifferentSets(t *testing.T) {
	for _, hosts := range [][]string{{"a", "a", "a", "a"}, {"a", "a", "b", "b"}} {
		group := joinHosts(t, hosts, weft.WithDeadline(30*time.Second))
		ctx := testContext(t)
		const (
			all    = "set mask: ranks disagree on the ranks to leave out: [3] on rank 2, none on ranks 0-1, 3"
			beside = "set mask: ranks disagree on the ranks to leave out: [3] on rank 2, none on ranks 0, 3" // rank 1
		)
		differ := func(c *weft.Comm) error {
			if c.Rank() == 2 {
				return c.SetMask(ctx, 3)
			}
			return c.SetMask(ctx)
		}
		for range 2 {
			for r, err := range each(group, differ) {
				if !errors.Is(err, weft.ErrMismatch) || err.Error() != all {
					t.Errorf("rank %d of %v: %v, want %s", r, hosts, err, all)
				}
			}
			// Rank 1 comes when the others have given up.
			some := []*weft.Comm{group[0], group[2], group[3]}
			for r, err := range each(some, differ) {
				if err == nil || err.Error() != beside {
					t.Errorf("rank %d of %v: %v, want %s", some[r].Rank(), hosts, err, beside)
				}
			}
			if err := differ(group[1]); err == nil || err.Error() != beside {
				t.Errorf("rank 1 of %v, late: %v, want %s", hosts, err, beside)
			}
			must(t, group, func(c *weft.Comm) error {
				return errors.Join(c.SetMask(ctx), c.Operations().VerifySame(ctx, "test", "all", nil))
			})
		}
	}
}

// TestHostsOnGPUs joins ranks on GPUs of two hosts. They agree and go on; windows are refused alike where there is no
// fabric.
func TestHostsOnGPUs(t *testing.T) {
	t.Setenv("WEFT_HEARTBEAT", "60s")
	none := func(context.Context, fabric.Options) (*fabric.Domain, error) {
		return nil, fmt.Errorf("%w: no library", fabric.ErrUnsupported)
	}
	g := ranktest.Fake(t, cudatest.Config{Devices: 2})
	group, err := ranktest.JoinEach(4, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.OnHost([]string{"a", "a", "b", "b"}[rank]), weft.WithFabric(none))
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
		_, err := c.Alloc(testContext(t), 100)
		return err
	}) {
		if !errors.Is(err, weft.ErrUnsupported) || group[r].Err() != nil {
			t.Errorf("rank %d allocates between hosts: %v", r, err)
		}
	}
	must(t, group, func(c *weft.Comm) error { return c.SetMask(testContext(t)) })
	must(t, group, func(c *weft.Comm) error {
		return c.Operations().VerifySame(testContext(t), "test", "together", nil)
	})
}

// TestHostsRefuseData: what needs a fabric where there is none, and expert parallelism, are refused on every rank, and
// leave no failure.
func TestHostsRefuseData(t *testing.T) {
	none := func(context.Context, fabric.Options) (*fabric.Domain, error) {
		return nil, fmt.Errorf("%w: no library", fabric.ErrUnsupported)
	}
	group := joinHosts(t, []string{"a", "b"}, weft.WithFabric(none))
	for what, call := range map[string]func(c *weft.Comm) error{
		"a window": func(c *weft.Comm) error {
			_, err := c.Alloc(testContext(t), 100)
			return err
		},
		"a group": func(c *weft.Comm) error {
			_, err := collective.New(testContext(t), c, collective.Options{})
			return err
		},
		"a handle": func(c *weft.Comm) error {
			_, err := ep.NewHandle(testContext(t), c, ep.Spec{
				Experts: 2, TopK: 1, Hidden: 8, MaxTokens: 2, Payload: ep.FP32,
				Layout: ep.TokenMajor, Reduction: ep.Partial, Weighting: ep.Plain,
			})
			return err
		},
	} {
		for r, err := range each(group, call) {
			if !errors.Is(err, weft.ErrUnsupported) {
				t.Errorf("rank %d makes %s between hosts: %v", r, what, err)
			}
		}
	}
	must(t, group, func(c *weft.Comm) error {
		return c.Operations().VerifySame(testContext(t), "test", "together", nil)
	})
}

// TestHostsSplit makes a communicator of each host's ranks, in which data moves, and a duplicate of all.
func TestHostsSplit(t *testing.T) {
	group := joinHosts(t, []string{"a", "b", "a", "b"})
	must(t, group, func(c *weft.Comm) error {
		near, err := c.Split(testContext(t), c.Host(c.Rank()), c.Rank())
		if err != nil {
			return err
		}
		_, err = near.Alloc(testContext(t), 100)
		all, failed := c.Duplicate(testContext(t))
		if failed == nil {
			failed = errors.Join(all.Operations().VerifySame(testContext(t), "test", "together", nil), all.Close())
		}
		return errors.Join(err, failed, near.Close())
	})
}

// TestLogOfHosts: the line of a join says what carries data between hosts.
func TestLogOfHosts(t *testing.T) {
	var j journal
	group, err := ranktest.JoinEach(2, func(rank int) []weft.Option {
		return []weft.Option{weft.OnHost(fmt.Sprint(rank)), weft.WithLogger(slog.New(slog.NewJSONHandler(&j, nil)))}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := ranktest.Close(group); err != nil {
		t.Error(err)
	}
	if want := `"transport":"shared memory within a host, libfabric between hosts"`; strings.Count(j.text(), want) != 2 {
		t.Errorf("no %s in %s", want, j.text())
	}
}

// TestHostsDisagree: ranks with other heartbeats do not join.
func TestHostsDisagree(t *testing.T) {
	for _, value := range []string{"soon", "1ms", "2h"} {
		t.Setenv("WEFT_HEARTBEAT", value)
		_, err := ranktest.JoinEach(2, func(rank int) []weft.Option { return []weft.Option{weft.OnHost(fmt.Sprint(rank))} })
		if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), "WEFT_HEARTBEAT") {
			t.Errorf("%s: %v", value, err)
		}
		for line := range strings.Lines(err.Error()) {
			if strings.Count(line, "join:") != 1 {
				t.Errorf("%s: %s", value, line)
			}
		}
	}
}
