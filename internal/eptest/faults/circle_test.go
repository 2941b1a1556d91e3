//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestCircle has ranks use handles, and groups, in other orders: they wait for each other until the
// deadline. All say so, none is blamed, and they go on in any way that they like.
func TestCircle(t *testing.T) {
	const short = 300 * time.Millisecond
	for _, c := range []struct {
		name   string
		orders [][]string // by rank
		words  []string
	}{
		{
			"handles",
			[][]string{{"handle 1", "handle 2"}, {"handle 2", "handle 1"}},
			[]string{"rank 0 for rank 1 in prepare of handle 1", "rank 1 for rank 0 in prepare of handle 2"},
		},
		{
			"groups",
			[][]string{{"group 1", "group 2"}, {"group 1", "group 2"}, {"group 2", "group 1"}},
			[]string{"barrier of group 1", "rank 2 for rank 0 in barrier of group 2"},
		},
		{
			"a handle and a group",
			[][]string{{"handle 1", "group 1"}, {"group 1", "handle 1"}},
			[]string{"prepare of handle 1", "barrier of group 1"},
		},
		{"three", [][]string{{"group 1", "handle 1"}, {"handle 1", "group 2"}, {"group 2", "group 1"}}, nil},
		{
			"a window",
			[][]string{{"handle 1", "window"}, {"window", "handle 1"}},
			[]string{"prepare of handle 1", "alloc window"},
		},
		{
			"messages",
			[][]string{{"receive"}, {"receive"}},
			[]string{
				"rank 0 for rank 1 in receive of group 1", "rank 1 for rank 0 in receive of group 1",
				"same order on every rank, and messages that face each other in one batch; ",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			comms, err := ranktest.Join(len(c.orders), weft.WithDeadline(short))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			errs := make([]error, len(comms))
			var failed sync.WaitGroup
			failed.Add(len(comms))
			err = ranktest.Each(comms, func(comm *weft.Comm) error {
				defer comm.Close()
				objects, err := pairs(ctx, comm)
				if err != nil {
					failed.Done()
					return err
				}
				start := time.Now()
				for _, name := range c.orders[comm.Rank()] {
					if errs[comm.Rank()] = objects[name](); errs[comm.Rank()] != nil {
						break
					}
				}
				if took := time.Since(start); took > short+slack {
					t.Errorf("rank %d fails after %v", comm.Rank(), took)
				}
				failed.Done()
				failed.Wait()
				if comm.Rank() == len(comms)-1 { // alone, without the others
					out := []int{}
					for r := range comm.Rank() {
						out = append(out, r)
					}
					return errors.Join(comm.SetMask(ctx, out...), comm.Err())
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			for r, err := range errs {
				peer, ok := errors.AsType[*weft.PeerError](err)
				if !ok || peer.Rank != -1 || !errors.Is(err, weft.ErrTimeout) {
					t.Errorf("rank %d: %v", r, err)
				}
				for _, words := range append([]string{"waited 0.3 s, which WithDeadline sets; SetMask goes on"}, c.words...) {
					if err != nil && !strings.Contains(err.Error(), words) {
						t.Errorf("rank %d does not say %q: %v", r, words, err)
					}
				}
			}
		})
	}
}

// pairs makes two handles and two groups, and gives what uses each.
func pairs(ctx context.Context, comm *weft.Comm) (map[string]func() error, error) {
	objects := map[string]func() error{"window": func() error {
		_, err := comm.Alloc(ctx, 8)
		return err
	}}
	for i := range 2 {
		h, err := ep.NewHandle(ctx, comm, ep.Spec{Experts: comm.Size(), TopK: 1, Hidden: 8, MaxTokens: 4})
		if err != nil {
			return nil, err
		}
		g, err := collective.New(ctx, comm, collective.Options{})
		if err != nil {
			return nil, err
		}
		if i == 0 {
			objects["receive"] = func() error {
				return g.Recv(ctx, nil, weft.TensorOf([]float32{0}), (comm.Rank()+1)%comm.Size())
			}
		}
		objects[fmt.Sprint("handle ", i+1)] = func() error {
			topk := weft.TensorOf(slices.Repeat([]int32{0}, 4), 4, 1)
			_, err := h.Prepare(ctx, nil, topk, weft.Tensor{})
			return err
		}
		objects[fmt.Sprint("group ", i+1)] = func() error { return g.Barrier(ctx, nil) }
	}
	return objects, nil
}
