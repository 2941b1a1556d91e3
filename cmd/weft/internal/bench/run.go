package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/launch"
)

// Host starts the ranks of measurements.
type Host struct {
	// Gone ends running ranks when it closes; see launch.Job.Run.
	Gone <-chan struct{}
	// Args are the arguments with which this program becomes a rank that calls Serve.
	Args []string
	// Timeout bounds each task, beyond the time that the task asks for.
	Timeout time.Duration
}

// ExitError says that the ranks ended with a status. Why was already said.
type ExitError struct {
	Code   int
	Reason string
}

func (e *ExitError) Error() string { return "ranks failed: " + e.Reason }

// Run runs a task on so many ranks and returns their results.
func (h *Host) Run(ranks int, task Task, progress func(done, total int)) ([][]timing.Series, error) {
	text, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	c := &collector{
		series: make([][]timing.Series, ranks),
		text:   launch.Text(os.Stderr, os.Stderr, launch.TextOptions{Size: ranks}), progress: progress,
	}
	job := launch.Job{
		Program: "/proc/self/exe", Args: h.Args, Size: ranks,
		Env: []string{taskEnv + "=" + string(text)}, Bind: launch.BindOff, // ranks pin the one thread that measures
		Grace: 2 * time.Second, Timeout: h.Timeout + task.time(), Sink: c,
	}
	res, err := job.Run(h.Gone)
	switch {
	case err != nil:
		return nil, err
	case res.Code != 0:
		return nil, &ExitError{Code: res.Code, Reason: res.Reason}
	}
	for r, s := range c.series {
		if s == nil {
			return nil, fmt.Errorf("rank %d ended without a result", r)
		}
		if len(s) != len(c.series[0]) {
			return nil, fmt.Errorf("rank %d measured %d operations, rank 0 %d", r, len(s), len(c.series[0]))
		}
	}
	return c.series, nil
}

// collector keeps the ranks' messages and shows everything else that happens.
type collector struct {
	series   [][]timing.Series
	text     launch.Sink
	progress func(done, total int)
}

func (c *collector) Put(e launch.Event) error {
	if e.Kind != launch.Output || e.Stream != "stdout" {
		return c.text.Put(e)
	}
	var m message
	d := json.NewDecoder(bytes.NewReader([]byte(e.Line)))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		const enough = 200 // of output that is no message, such as a panic's text
		e.Line = e.Line[:min(len(e.Line), enough)]
		return errors.Join(c.text.Put(e), c.text.Flush())
	}
	if m.Series != nil {
		c.series[e.Rank] = append(c.series[e.Rank], *m.Series)
	} else if c.progress != nil {
		c.progress(m.Done, m.Total)
	}
	return nil
}

func (c *collector) Flush() error { return c.text.Flush() }
