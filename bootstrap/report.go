package bootstrap

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weftgo/weft/internal/rankset"
)

// Wait is a wait that goes on for long, as [WithReport] reports it.
type Wait struct {
	Op      string        // the operation: "join", "all-gather" or "barrier"
	Ranks   []int         // the ranks that are waited for, in order; empty if that is not known
	Size    int           // how many ranks the job has
	Address string        // where they meet, a host:port; empty if that is not known
	Waited  time.Duration // for so long
	Refused []string      // rank 0: the last connections that were turned away, each with the reason
}

// String says it in a sentence: "waiting for rank 2 of 4 at 127.0.0.1:29411 for 10 s". Who was turned away follows.
func (w Wait) String() string {
	var b strings.Builder
	who := "the other ranks"
	if len(w.Ranks) > 0 {
		who = rankset.Names(w.Ranks)
	}
	fmt.Fprintf(&b, "waiting for %s of %d", who, w.Size)
	if w.Address != "" {
		b.WriteString(" at " + w.Address)
	}
	b.WriteString(" for " + Seconds(w.Waited))
	return b.String() + turnedAway(w.Refused)
}

// Seconds is a duration as errors and logs say it: "60 s", "0.3 s".
func Seconds(d time.Duration) string {
	precision := 100 * time.Millisecond
	if d < time.Second {
		precision = time.Millisecond
	}
	return strconv.FormatFloat(d.Round(precision).Seconds(), 'f', -1, 64) + " s"
}

type reportKey struct{}

// ReportAfter is how long a wait lasts before it is reported for the first time. The pauses between
// further reports grow twofold.
const ReportAfter = 10 * time.Second

// WithReport returns a context with which joins and collectives call report while they wait for
// long. It is called by another goroutine, one call at a time.
func WithReport(ctx context.Context, report func(Wait)) context.Context {
	return context.WithValue(ctx, reportKey{}, reporter{report, ReportAfter})
}

type reporter struct {
	report func(Wait)
	after  time.Duration
}

// reportWhile reports the wait that look describes until it is stopped. Nothing is reported if the
// context has no reporter.
func reportWhile(ctx context.Context, look func(context.Context) Wait) (stop func()) {
	r, ok := ctx.Value(reportKey{}).(reporter)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		begun, pause := time.Now(), r.after
		for {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			waited := time.Since(begun)
			w := look(ctx)
			if w.Waited = waited; ctx.Err() == nil {
				r.report(w)
			}
			pause *= 2
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// missingRanks are the ranks that have not entered a collective, as far as this rank can find out.
func (m *mesh) missingRanks(ctx context.Context, s share) []int {
	m.mu.Lock()
	if m.rank == 0 {
		defer m.mu.Unlock()
		return ranksOf(m.absent(s.seq))
	}
	if ctx.Err() != nil { // the call that gives up may have asked
		m.mu.Unlock()
		return nil
	}
	m.answer = nil
	hub := m.out[0]
	m.mu.Unlock()
	m.post(0, hub, pack(inquiry{s.seq}))
	ctx, cancel := context.WithTimeout(ctx, inquiryTimeout)
	defer cancel()
	var ranks []int
	_ = m.wait(ctx, func() (bool, error) {
		if m.answer == nil || m.answer.seq != s.seq {
			return false, nil
		}
		ranks = ranksOf(m.answer.ranks)
		return true, nil
	})
	return ranks
}

func ranksOf(numbers []uint32) []int {
	ranks := make([]int, len(numbers))
	for i, r := range numbers {
		ranks[i] = int(r)
	}
	return ranks
}
