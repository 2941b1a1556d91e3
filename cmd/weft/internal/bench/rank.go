package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
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

// Serve is the program of a rank: it runs the task of its environment and writes the result to w.
func Serve(ctx context.Context, w io.Writer) error {
	var task Task
	if err := json.Unmarshal([]byte(os.Getenv(taskEnv)), &task); err != nil {
		return fmt.Errorf("this command is started by the others: %w", err)
	}
	out := json.NewEncoder(w)
	series, err := serve(ctx, task, func(done, total int) error {
		return out.Encode(message{Done: done, Total: total})
	})
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

func serve(ctx context.Context, task Task, progress func(done, total int) error) (series []timing.Series, err error) {
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
	if task.AllReduce != nil && task.AllReduce.Algorithm != "" {
		opts.Force = []string{task.AllReduce.Algorithm}
	}
	host, err := timing.NewHost(ctx, comm, opts)
	if err != nil {
		return nil, err
	}
	host.Progress = progress
	defer func() {
		if err == nil { // a rank that leaves first must not spoil the others' last operation
			err = host.Meet()
		}
	}()
	switch {
	case task.EP != nil:
		return benchep.Measure(host, *task.EP)
	case task.AllReduce != nil:
		return benchcollective.Measure(host, *task.AllReduce)
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
