package timing

import (
	"context"
	"strconv"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
)

// Host is a rank that times operations on the host, by its clock.
type Host struct {
	Context context.Context
	Comm    *weft.Comm
	Group   *collective.Group
	// Meet returns when all ranks have come: it stands before each operation.
	Meet func() error
	// Progress gets the fraction that is done, seldom. Nil: no progress.
	Progress func(done, total int) error

	reported time.Time
}

// NewHost makes a rank of a communicator's.
func NewHost(ctx context.Context, comm *weft.Comm, o collective.Options) (*Host, error) {
	group, err := collective.New(ctx, comm, o)
	if err != nil {
		return nil, err
	}
	h := &Host{Context: ctx, Comm: comm, Group: group}
	h.Meet = func() error { return group.Barrier(ctx, nil) }
	return h, nil
}

// Rounds are operations that follow each other, again and again.
type Rounds struct {
	Operations []Operation
	Warmup     int // rounds before the others, all checked
	Rehearsal  int // later rounds, whose time says how many fit in an Effort
	// Checked says which rounds are checked, of those that are timed.
	Checked func(round, of int) bool
}

// Time times rounds, and gives a series for each operation. Every operation begins on all ranks
// together.
func (h *Host) Time(e Effort, r Rounds) ([]Series, error) {
	var v Verdict
	for range r.Warmup {
		if err := h.round(r.Operations, nil, true, &v); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	for range r.Rehearsal {
		if err := h.round(r.Operations, nil, false, &v); err != nil {
			return nil, err
		}
	}
	n, err := h.iterations(e, r.Rehearsal, time.Since(began))
	if err != nil {
		return nil, err
	}
	times := make([]*recorder, len(r.Operations))
	for k := range times {
		times[k] = newRecorder(n)
	}
	for i := range n {
		if err := h.round(r.Operations, times, r.Checked(i, n), &v); err != nil {
			return nil, err
		}
		if err := h.progress(i, n); err != nil {
			return nil, err
		}
	}
	series := make([]Series, len(r.Operations))
	for k, o := range r.Operations {
		b := o.Bytes
		series[k] = Series{
			Op: o.Name, Times: times[k].pack(), Problem: v.problem, Wrong: v.elements,
			Wire: b.Wire, Logical: b.Logical, DeepEP: b.DeepEP, Moved: b.Moved,
		}
	}
	return series, nil
}

// round does every operation once. Without times it is a rehearsal.
func (h *Host) round(all []Operation, times []*recorder, checked bool, v *Verdict) error {
	for k := range all {
		o := &all[k]
		if err := o.renew(checked); err != nil {
			return err
		}
		if err := h.Meet(); err != nil {
			return err
		}
		began := time.Now()
		err := o.Run(checked)
		took := time.Since(began)
		if err != nil {
			return err
		}
		if times != nil {
			times[k].add(took)
		}
		if checked {
			if err := o.check(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// progress reports the fraction that is done; only rank 0 does, and seldom.
func (h *Host) progress(done, total int) error {
	const seldom = 250 * time.Millisecond
	if h.Progress == nil || h.Comm.Rank() != 0 || (done%16 != 0 && done != total) {
		return nil
	}
	if now := time.Now(); now.Sub(h.reported) > seldom {
		h.reported = now
		return h.Progress(done, total)
	}
	return nil
}

// iterations says how many iterations to time, the same on every rank, after n of them
// took d.
func (h *Host) iterations(e Effort, n int, d time.Duration) (int, error) {
	if e.Iterations > 0 {
		return e.Iterations, nil
	}
	notes, err := h.Comm.Operations().GatherNotes(h.Context, "choose iterations", []byte(strconv.FormatInt(int64(d), 10)))
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
	return min(max(int(float64(e.Time)/float64(max(d, 1))*float64(n)), fewestIterations), MostIterations), nil
}

// Operand is memory for a tensor, in a window or not. Making a window is collective.
func (h *Host) Operand(n int, heap bool) (mem []byte, free func(), err error) {
	if heap {
		return make([]byte, n), func() {}, nil
	}
	w, err := h.Comm.Alloc(h.Context, n)
	if err != nil {
		return nil, nil, err
	}
	return w.Bytes(), func() { _ = w.Close() }, nil
}

// Poison overwrites memory: no result looks like this.
func Poison(mem []byte) {
	if len(mem) == 0 {
		return
	}
	mem[0] = 0xa5
	for n := 1; n < len(mem); n *= 2 {
		copy(mem[n:], mem[:n])
	}
}
