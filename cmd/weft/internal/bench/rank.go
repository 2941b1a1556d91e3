package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/topology"
	"github.com/weftgo/weft/collective"
)

// taskEnv carries the task to the ranks.
const taskEnv = "WEFT_BENCH_TASK"

// Serve is the program of a rank: it does the task that its environment holds and
// writes what it measured to w.
func Serve(ctx context.Context, w io.Writer) error {
	var task Task
	if err := json.Unmarshal([]byte(os.Getenv(taskEnv)), &task); err != nil {
		return fmt.Errorf("this command is started by the others: %w", err)
	}
	r := &rank{ctx: ctx, out: json.NewEncoder(w)}
	series, err := r.serve(task)
	if err != nil {
		return err
	}
	for i := range series {
		if err := r.out.Encode(message{Series: &series[i]}); err != nil {
			return err
		}
	}
	return nil
}

func (r *rank) serve(task Task) (series []Series, err error) {
	// The measuring thread gets a processor of its own if there are enough; the rest of
	// the runtime runs where it likes.
	runtime.LockOSThread()
	if cpus, err := ownCPUs(); err == nil {
		if err := topology.Pin(cpus); err != nil {
			return nil, err
		}
	}
	if task.Join != nil {
		return r.measureJoin(*task.Join)
	}
	if r.comm, err = weft.Join(r.ctx); err != nil {
		return nil, err
	}
	defer func() {
		if e := r.comm.Close(); err == nil {
			err = e
		}
	}()
	var opts collective.Options
	if task.AllReduce != nil && task.AllReduce.Algorithm != "" {
		opts.Force = []string{task.AllReduce.Algorithm}
	}
	if r.group, err = collective.New(r.ctx, r.comm, opts); err != nil {
		return nil, err
	}
	defer func() {
		if err == nil { // whoever leaves first must not spoil the others' last operation
			err = r.group.Barrier(r.ctx, nil)
		}
	}()
	switch {
	case task.EP != nil:
		return r.measureEP(*task.EP)
	case task.AllReduce != nil:
		return r.measureAllReduce(*task.AllReduce)
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

// rank is the state of a measuring rank.
type rank struct {
	ctx   context.Context
	out   *json.Encoder
	comm  *weft.Comm
	group *collective.Group
	said  time.Time
}

func (r *rank) barrier() error { return r.group.Barrier(r.ctx, nil) }

// progress tells the command how far the measurement is; only rank 0 does, and seldom.
func (r *rank) progress(done, total int) error {
	const seldom = 250 * time.Millisecond
	if r.comm.Rank() != 0 || (done%16 != 0 && done != total) {
		return nil
	}
	if now := time.Now(); now.Sub(r.said) > seldom {
		r.said = now
		return r.out.Encode(message{Done: done, Total: total})
	}
	return nil
}

// iterations says how many iterations to time, the same on every rank, after n of them
// took d.
func (r *rank) iterations(e Effort, n int, d time.Duration) (int, error) {
	if e.Iterations > 0 {
		return e.Iterations, nil
	}
	notes, err := r.comm.Agree(r.ctx, "choose iterations", []byte(strconv.FormatInt(int64(d), 10)))
	if err != nil {
		return 0, err
	}
	for _, note := range notes {
		v, err := strconv.ParseInt(string(note), 10, 64)
		if err != nil {
			return 0, err
		}
		d = max(d, time.Duration(v))
	}
	return min(max(int(float64(e.Time)/float64(max(d, 1))*float64(n)), fewestIterations), mostIterations), nil
}
