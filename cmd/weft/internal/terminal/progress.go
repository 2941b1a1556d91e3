package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// every is how often a bar that is no bar says a line.
const every = 5 * time.Second

// Progress shows how far some pieces of work have come.
type Progress struct {
	bars *mpb.Progress // nil: plain lines
	mu   sync.Mutex
	w    io.Writer
}

// NewProgress shows progress on f, which is normally os.Stderr: bars on a
// terminal, a line now and then elsewhere.
func NewProgress(f *os.File) *Progress { return newProgress(f, Is(f)) }

func newProgress(w io.Writer, terminal bool) *Progress {
	p := &Progress{w: w}
	if terminal {
		p.bars = mpb.New(mpb.WithOutput(w), mpb.WithAutoRefresh(), mpb.WithWidth(32),
			mpb.WithRefreshRate(100*time.Millisecond))
	}
	return p
}

// Above returns a writer for results that go to f while bars may be on the screen:
// on a terminal they scroll by above the bars. Whole lines only.
func (p *Progress) Above(f *os.File) io.Writer {
	if p.bars != nil && Is(f) {
		return p.bars
	}
	return f
}

// Close draws the last state. Every task must be done.
func (p *Progress) Close() {
	if p.bars != nil {
		p.bars.Wait()
	}
}

// Task is one piece of work of a known number of steps.
type Task struct {
	p     *Progress
	name  string
	total int
	bar   *mpb.Bar

	mu     sync.Mutex
	done   int
	began  time.Time
	spoken time.Time
	ended  bool
}

// Start begins a task of total steps.
func (p *Progress) Start(name string, total int) *Task {
	now := time.Now()
	t := &Task{p: p, name: name, total: total, began: now, spoken: now}
	if p.bars != nil {
		t.bar = p.bars.AddBar(int64(max(total, 1)),
			mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(
				decor.CountersNoUnit("%d/%d", decor.WCSyncSpace),
				decor.Elapsed(decor.ET_STYLE_GO, decor.WCSyncSpace),
			))
	}
	return t
}

// Advance records n finished steps. It may be called from several goroutines.
func (t *Task) Advance(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	if t.bar != nil {
		// The last step is Done's: a full bar is final.
		t.bar.SetCurrent(int64(min(t.done, max(t.total, 1)-1)))
		return
	}
	if now := time.Now(); now.Sub(t.spoken) >= every && t.done < t.total {
		t.spoken = now
		t.say("%s: %d of %d, %v", t.name, t.done, t.total, now.Sub(t.began).Round(time.Second))
	}
}

// Done ends the task, with a remark on its outcome that may be empty. Only the
// first call counts, so it can be deferred.
func (t *Task) Done(remark string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.ended = true
	if t.bar != nil {
		if t.done < t.total {
			t.bar.Abort(false)
			return
		}
		t.bar.SetCurrent(int64(max(t.total, 1)))
		return
	}
	if remark != "" {
		remark = ": " + remark
	}
	t.say("%s: %d of %d, %v%s", t.name, t.done, t.total, time.Since(t.began).Round(time.Millisecond), remark)
}

func (t *Task) say(format string, args ...any) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	// Progress is a courtesy: a closed stderr must not end the work.
	_, _ = fmt.Fprintf(t.p.w, format+"\n", args...)
}
