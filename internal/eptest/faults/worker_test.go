//go:build linux

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

func TestMain(m *testing.M) {
	if processes.Main(map[string]func() processes.Part{"worker": func() processes.Part { return &worker{} }}) {
		return
	}
	goleak.VerifyTestMain(m)
}

// deadline is that of every rank, patience how long it waits for the others to be started.
const (
	deadline = 2 * time.Second
	patience = 8 * time.Second
)

// worker is a rank that works until the test wants no more: it makes windows, handles and groups,
// and exchanges with them. After a failure it leaves out the rank that the error names, and goes
// on.
type worker struct {
	rank    *processes.Rank
	args    workerArgs
	log     *os.File
	comm    *weft.Comm
	group   *collective.Group
	mask    uint64
	started time.Time // the operation in progress
	round   int       // of the generation
}

type workerArgs struct {
	ID     string
	Folder string // of the logs, and of the file that ends the work
	// Stubborn workers that are told that the others take them for lost try to go on without
	// everybody else.
	Stubborn bool
}

func logOf(folder string, rank int) string { return filepath.Join(folder, fmt.Sprint("rank", rank)) }
func endOf(folder string) string           { return filepath.Join(folder, "end") }

// event is a line of a worker's log.
type event struct {
	What       string
	Start, At  time.Time
	Op         string `json:",omitempty"`
	Peer       int    // that an error names, or -1
	Cause, Err string `json:",omitempty"`
	Mask       uint64 `json:",omitempty"`
	Generation uint64 `json:",omitempty"`
}

// What happens to workers. The last three are the end.
const (
	joined = "joined"
	round  = "round"
	failed = "failed" // an operation
	masked = "masked"
	lost   = "lost" // did not join
	out    = "out"  // the others go on without it
	done   = "done"
)

func (e event) last() bool { return e.What == lost || e.What == out || e.What == done }

func (w *worker) note(what, op string, err error) event {
	e := event{What: what, Start: w.started, At: time.Now(), Op: op, Peer: -1, Mask: w.mask}
	if w.comm != nil {
		e.Generation = w.comm.Operations().Generation()
	}
	if err != nil {
		a := processes.AnswerOf(err)
		e.Peer, e.Cause, e.Err = a.Peer, a.Cause, a.Err
	}
	line, _ := json.Marshal(e)
	if _, err := w.log.Write(append(line, '\n')); err != nil {
		panic(err)
	}
	return e
}

func (w *worker) Do(r *processes.Rank, c processes.Command) (any, error) {
	if err := json.Unmarshal(c.Args, &w.args); err != nil {
		return nil, err
	}
	w.rank = r
	var err error
	if w.log, err = os.Create(logOf(w.args.Folder, r.Rank)); err != nil {
		return nil, err
	}
	defer w.log.Close()
	r.Patience = patience
	w.started = time.Now()
	if w.comm, err = r.Join(w.args.ID, weft.WithDeadline(deadline)); err != nil {
		w.note(lost, "join", err)
		return nil, nil
	}
	w.note(joined, "", nil)
	what := w.work()
	err = w.comm.Close()
	w.note(what, "", err)
	return nil, nil
}

// work returns how it ended.
func (w *worker) work() string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		w.started = time.Now()
		op, end, err := w.step(ctx)
		switch {
		case err != nil:
			if e := w.note(failed, op, err); !w.goOn(ctx, e.Peer) {
				return out
			}
		case end:
			return done
		default:
			w.note(round, op, nil)
			time.Sleep(2 * time.Millisecond) // stands for the work of a model
		}
	}
}

// goOn leaves a rank out, and whom else it takes. It reports whether the rank itself remains.
func (w *worker) goOn(ctx context.Context, peer int) bool {
	for range 10 {
		switch me := w.rank.Rank; {
		case peer == me && w.args.Stubborn:
			w.args.Stubborn = false
			w.mask = (1<<uint(w.rank.Size) - 1) &^ (1 << uint(me))
		case peer == me || peer < 0:
			return false
		default:
			w.mask |= 1 << uint(peer)
		}
		w.started = time.Now()
		err := w.comm.SetMask(ctx, w.left()...)
		// others have other ranks to leave out, too: who it is they find out
		for err != nil && errors.Is(err, weft.ErrMismatch) {
			w.note(failed, "set mask", err)
			w.started = time.Now()
			err = w.comm.SetMask(ctx, w.left()...)
		}
		if err == nil {
			w.note(masked, "", nil)
			if w.group != nil {
				err = w.group.Close()
			}
			w.group, w.round = nil, 0
			if err == nil {
				return true
			}
		}
		peer = w.note(failed, "set mask", err).Peer
	}
	return false
}

// left lists the ranks that are left out.
func (w *worker) left() (ranks []int) {
	for r := range w.rank.Size {
		if w.mask>>uint(r)&1 != 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// step is a round: something that takes all ranks, and the question whether there is to be another
// one.
func (w *worker) step(ctx context.Context) (op string, end bool, err error) {
	n := w.round
	w.round++
	seed := w.comm.Operations().Generation()<<20 + uint64(n)
	switch {
	case w.group == nil:
		op = "new group"
		w.group, err = collective.New(ctx, w.comm, collective.Options{Scratch: 64 << 10})
	case n%3 == 1:
		op = "exchange"
		s := ep.Spec{
			Experts: 2 * w.rank.Size, TopK: 2, Hidden: 24, MaxTokens: 4, Layout: ep.ExpertPacked,
			Reduction: ep.Partial, Alignment: 4,
		}
		err = eptest.Fixed(s, w.rank.Size, seed).Do(eptest.NewHostRank(w.comm), w.comm, w.left()...)
	case n%3 == 2:
		op = "window"
		err = w.window(ctx, byte(seed))
	default:
		op = "all-reduce"
		err = w.sum(ctx, int32(seed))
	}
	if err != nil {
		return op, false, err
	}
	want := int32(0)
	if _, err := os.Stat(endOf(w.args.Folder)); err == nil {
		want = 1
	}
	all := []int32{0}
	err = w.group.AllReduce(ctx, nil, weft.TensorOf(all), weft.TensorOf([]int32{want}), weft.Max)
	return "end of " + op, all[0] != 0, err
}

func (w *worker) window(ctx context.Context, mark byte) error {
	window, err := w.comm.Alloc(ctx, 1000)
	if err != nil {
		return err
	}
	window.Bytes()[999] = mark + byte(w.rank.Rank)
	if err := w.comm.Operations().VerifySame(ctx, "window", "written", nil); err != nil {
		return errors.Join(err, window.Close())
	}
	for r := range w.rank.Size {
		if p := window.Peer(r); !w.comm.Masked(r) && p[999] != mark+byte(r) {
			return fmt.Errorf("rank %d's part shows %d", r, p[999])
		}
	}
	return errors.Join(w.comm.Operations().VerifySame(ctx, "window", "read", nil), window.Close())
}

func (w *worker) sum(ctx context.Context, x int32) error {
	const n = 5000
	in, sum := make([]int32, n), make([]int32, n)
	for i := range in {
		in[i] = x + int32(w.rank.Rank*i)
	}
	if err := w.group.AllReduce(ctx, nil, weft.TensorOf(sum), weft.TensorOf(in), weft.Sum); err != nil {
		return err
	}
	for i, got := range sum {
		var want int32
		for r := range w.rank.Size {
			if !w.comm.Masked(r) {
				want += x + int32(r*i)
			}
		}
		if got != want {
			return fmt.Errorf("element %d of the sum is %d, want %d", i, got, want)
		}
	}
	return nil
}
