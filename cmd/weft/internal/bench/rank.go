package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"

	"github.com/weftgo/weft"
	benchcollective "github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/topology"
	"github.com/weftgo/weft/collective"
)

// taskEnv carries the task to the ranks.
const taskEnv = "WEFT_BENCH_TASK"

// Member measures as one of the ranks that a launcher has started, all of which run the same task.
type Member struct{ Context context.Context }

// Run runs a task on the launcher's ranks and returns the results of all, on every rank.
func (m Member) Run(ranks int, task Task, _ func(done, total int)) (byRank [][]timing.Series, err error) {
	_, err = serve(m.Context, task, nil, func(h *timing.Host, mine []timing.Series) error {
		if h.Comm.Size() != ranks {
			return fmt.Errorf("the launcher started %d ranks, not %d", h.Comm.Size(), ranks)
		}
		byRank, err = exchange(h, mine)
		return err
	})
	return byRank, err
}

// exchange gives every rank the results of all.
func exchange(h *timing.Host, mine []timing.Series) ([][]timing.Series, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	length, lengths := []int64{int64(len(text))}, make([]int64, h.Comm.Size())
	if err := h.Group.AllGather(h.Context, nil, weft.TensorOf(lengths), weft.TensorOf(length)); err != nil {
		return nil, err
	}
	longest := int(slices.Max(lengths))
	all := make([]byte, longest*len(lengths))
	text = append(text, make([]byte, longest-len(text))...)
	if err := h.Group.AllGather(h.Context, nil, weft.TensorOf(all), weft.TensorOf(text)); err != nil {
		return nil, err
	}
	byRank := make([][]timing.Series, len(lengths))
	for r, n := range lengths {
		if err := json.Unmarshal(all[r*longest:][:n], &byRank[r]); err != nil {
			return nil, err
		}
	}
	return byRank, nil
}

// Serve is the program of a rank: it runs the task of its environment and writes the result to w.
func Serve(ctx context.Context, w io.Writer) error {
	var task Task
	if err := json.Unmarshal([]byte(os.Getenv(taskEnv)), &task); err != nil {
		return fmt.Errorf("this command is started by the others: %w", err)
	}
	out := json.NewEncoder(w)
	series, err := serve(ctx, task, func(done, total int) error {
		return out.Encode(message{Done: done, Total: total})
	}, nil)
	if err != nil {
		return err
	}
	for i := range series {
		if err := out.Encode(message{Series: &series[i]}); err != nil {
			return err
		}
	}
	return nil
}

// serve runs a task as a rank. If it times with a host, done gets the results before the rank leaves.
func serve(ctx context.Context, task Task, progress func(done, total int) error,
	done func(h *timing.Host, series []timing.Series) error,
) (series []timing.Series, err error) {
	// The measuring thread gets a processor of its own if there are enough; the rest of
	// the runtime runs where it likes.
	runtime.LockOSThread()
	if cpus, err := ownCPUs(); err == nil {
		if err := topology.Pin(cpus); err != nil {
			return nil, err
		}
	}
	comm, err := weft.Join(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := comm.Close(); err == nil {
			err = e
		}
	}()
	if task.Join != nil {
		return task.Join.measure(ctx, comm, progress)
	}
	var opts collective.Options
	if task.Collective != nil {
		if opts, err = task.Collective.Options(); err != nil {
			return nil, err
		}
	}
	host, err := timing.NewHost(ctx, comm, opts)
	if err != nil {
		return nil, err
	}
	host.Progress = progress
	defer func() {
		if err == nil && done != nil {
			err = done(host, series)
		}
		if err == nil { // a rank that leaves first must not spoil the others' last operation
			err = host.Meet()
		}
	}()
	switch {
	case task.EP != nil:
		return benchep.Measure(host, *task.EP)
	case task.Collective != nil:
		return benchcollective.Measure(host, *task.Collective)
	}
	return nil, fmt.Errorf("an empty task")
}

// ownCPUs is this rank's share of the processors, or an error if there are too few.
func ownCPUs() ([]int, error) {
	rank, _ := strconv.Atoi(os.Getenv("WEFT_LOCAL_RANK"))
	size, _ := strconv.Atoi(os.Getenv("WEFT_LOCAL_SIZE"))
	allowed, err := topology.Allowed()
	if err != nil {
		return nil, err
	}
	parts, err := topology.Slices(os.DirFS("/"), allowed, size)
	if err != nil {
		return nil, err
	}
	if rank < 0 || rank >= len(parts) {
		return nil, fmt.Errorf("local rank %d of %d", rank, size)
	}
	return parts[rank], nil
}
