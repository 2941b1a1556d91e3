package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/trace"
)

// tracedRanks runs a rank on each of so many emulated GPUs, and gives what each has recorded.
func tracedRanks(t *testing.T, ranks int, deadline time.Duration,
	body func(ctx context.Context, comm *weft.Comm, g *Gatherer) error,
) []*trace.File {
	t.Helper()
	dir := t.TempDir()
	g, err := ranktest.Emulate(cudatest.Config{Devices: ranks}, emulate.Options{}, t.TempDir())
	if errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(errNoGPUs)
	}
	if err != nil {
		t.Fatal(err)
	}
	err = ranktest.Run(ranks, func(rank int) []weft.Option {
		return append(g.Options(rank), weft.WithDeadline(deadline), weft.WithTrace(dir))
	}, func(ctx context.Context, comm *weft.Comm) error {
		gatherer, err := NewGatherer(ctx, comm)
		if err != nil {
			return err
		}
		return errors.Join(body(ctx, comm, gatherer), gatherer.Close())
	})
	if err := errors.Join(err, g.Close()); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"+trace.Extension))
	if err != nil || len(names) != ranks {
		t.Fatalf("files %v, %v", names, err)
	}
	var files []*trace.File
	for _, name := range names {
		f, err := trace.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// TestTraceInGraphs: a traced lane's operations, eager ones and replayed ones, are numbered from 1 on, each with its
// beginning and its end.
func TestTraceInGraphs(t *testing.T) {
	const eager, replays, captured = 3, 4, 2
	files := tracedRanks(t, 2, deadline, func(ctx context.Context, comm *weft.Comm, g *Gatherer) (err error) {
		c := comm.Device().Context()
		stream, err := c.NewStream(cuda.StreamOptions{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stream.Close()) }()
		s := weft.StreamOf(stream)
		for i := range uint32(eager) {
			if _, err := gatherOnce(ctx, comm, g, s, i); err != nil {
				return err
			}
		}
		m, err := c.Alloc(4 * (1 + comm.Size()))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		graph, err := stream.Capture(func() error {
			for range captured {
				if err := g.Gather(ctx, s, m.Pointer(), m.Pointer().Add(4)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		exec, err := graph.Instantiate()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, exec.Close(), graph.Close()) }()
		for range replays {
			if err := errors.Join(exec.Launch(stream), comm.Wait(ctx, s)); err != nil {
				return err
			}
		}
		return nil
	})
	for _, f := range files {
		if err := checkGathers(f, eager+replays*captured); err != nil {
			t.Errorf("rank %d: %v", f.Header.Rank, err)
		}
	}
}

// checkGathers holds a rank's only track to so many operations.
func checkGathers(f *trace.File, operations uint64) error {
	if len(f.Tracks) != 1 || f.Cut != "" || len(f.Anchors) == 0 {
		return fmt.Errorf("%d tracks, cut %q, %d anchors", len(f.Tracks), f.Cut, len(f.Anchors))
	}
	track := f.Tracks[0]
	if track.Lane != "gatherer 1" || track.Lost+track.Overwritten != 0 || len(track.Ops) != 1 || track.Ops[0] != "gather" {
		return fmt.Errorf("track %+v, %d lost", track.Track, track.Overwritten)
	}
	last := trace.Event{Site: trace.End}
	for _, e := range track.Events {
		switch {
		case e.Op != 0 || e.Peer != -1 || e.Block != 0:
			return fmt.Errorf("event %+v", e)
		case e.Time < last.Time:
			return fmt.Errorf("event %+v behind %+v", e, last)
		case e.Site == trace.Begin && last.Site == trace.End && e.Epoch == last.Epoch+1:
		case e.Site == trace.End && last.Site == trace.Begin && e.Epoch == last.Epoch:
		default:
			return fmt.Errorf("event %+v behind %+v", e, last)
		}
		last = e
	}
	if last.Epoch != operations || last.Site != trace.End {
		return fmt.Errorf("the last event is %+v, want the end of %d", last, operations)
	}
	return nil
}

// TestTraceOverwritten: what a ring has lost before it was read is counted, and the rest is in order.
func TestTraceOverwritten(t *testing.T) {
	const operations = 400 // more than a ring has
	files := tracedRanks(t, 1, deadline, func(ctx context.Context, comm *weft.Comm, g *Gatherer) error {
		for range operations {
			if err := gatherHere(ctx, comm, g); err != nil {
				return err
			}
		}
		return nil
	})
	track := files[0].Tracks[0]
	seen := map[uint64]bool{}
	for _, e := range track.Events {
		seen[e.Epoch] = true
	}
	if uint64(len(seen))+track.Overwritten != operations || !seen[operations] {
		t.Errorf("%d operations seen, %d lost, of %d", len(seen), track.Overwritten, operations)
	}
}

// gatherHere gathers into a new buffer, and waits.
func gatherHere(ctx context.Context, comm *weft.Comm, g *Gatherer) error {
	_, err := gatherOnce(ctx, comm, g, nil, uint32(comm.Rank()))
	return err
}

// TestTraceOfAFailure: what an operation had come to when its wait gave up is in the file, under the number that it has
// on every rank.
func TestTraceOfAFailure(t *testing.T) {
	files := tracedRanks(t, 2, 2*time.Second, func(ctx context.Context, comm *weft.Comm, g *Gatherer) error {
		if err := gatherHere(ctx, comm, g); err != nil {
			return err
		}
		if comm.Rank() == 1 {
			return nil // and leaves
		}
		if err := gatherHere(ctx, comm, g); err == nil {
			return errors.New("a gather without the peer ended well")
		}
		return nil
	})
	begun := false
	for _, e := range files[0].Tracks[0].Events {
		begun = begun || e.Epoch == 2 && e.Site == trace.Begin
	}
	if !begun {
		t.Errorf("no beginning of the operation that failed in %+v", files[0].Tracks[0].Events)
	}
}
