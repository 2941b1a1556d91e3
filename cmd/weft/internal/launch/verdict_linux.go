package launch

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/topology"
)

// grace is how long a plain exit waits for a crash that explains it.
const grace = 30 * time.Millisecond

// ended records the death of a child, which is a rank or an adopted process.
func (s *supervisor) ended(pid int, status syscall.WaitStatus) {
	i := slices.IndexFunc(s.ranks, func(r *rank) bool { return r.pid == pid && !r.reaped })
	if i < 0 {
		return
	}
	r := s.ranks[i]
	r.reaped, r.status, r.seconds = true, status, time.Since(r.started).Seconds()
	s.buried = append(s.buried, r)
	if r.drained {
		s.finish(r)
	}
	if !r.failed() || s.named {
		return
	}
	if s.stage >= terminating && s.first == nil && s.forced != nil {
		return // it died because the job ends
	}
	switch {
	case s.first == nil:
		s.first = r
		s.verdict.Reset(grace)
	case r.crashed() && !s.first.crashed():
		s.first = r
	}
	if s.stage == running {
		s.enter(waiting)
	}
}

// finish reports a rank's end after its last line.
func (s *supervisor) finish(r *rank) {
	r.drained = true
	if !r.reaped || r.reported {
		return
	}
	r.reported = true
	e := Event{Kind: Exited, Rank: r.index, PID: r.pid, Code: code(r.status), Seconds: r.seconds}
	if r.status.Signaled() {
		e.Signal = signalName(r.status.Signal())
	}
	s.out.say(e)
}

// name makes the verdict on the first failure final and public.
func (s *supervisor) name() {
	if s.named || s.first == nil {
		return
	}
	s.named = true
	alive := 0
	for _, r := range s.ranks {
		if !r.reaped {
			alive++
		}
	}
	which := "failed first"
	if len(s.ranks) == 1 {
		which = "failed"
	}
	msg := fmt.Sprintf("rank %d %s: %s", s.first.index, which, s.first.reason())
	if s.stage == waiting {
		switch alive {
		case 0:
		case 1:
			msg += fmt.Sprintf("; the one still running has %v to end", s.job.Grace)
		default:
			msg += fmt.Sprintf("; the %d still running have %v to end", alive, s.job.Grace)
		}
	}
	e := Event{Kind: Failed, Rank: s.first.index, Code: code(s.first.status), Seconds: s.first.seconds, Message: msg}
	if s.first.status.Signaled() {
		e.Signal = signalName(s.first.status.Signal())
	}
	s.out.say(e)
}

// end collects the last lines, says how it went, and sums up. The error is why that can't be
// written, if that is news.
func (s *supervisor) end() (Result, error) {
	// Every known writer is dead, so the streams end by themselves, unless a rank passed one to a
	// process outside this tree.
	late := time.AfterFunc(time.Second, func() {
		for _, r := range s.ranks {
			for _, f := range r.streams {
				_ = f.SetReadDeadline(time.Now())
			}
		}
	})
	defer late.Stop()
	stuck := time.After(2 * time.Second) // our output has no reader
	for _, r := range s.ranks {
		for !r.drained {
			select {
			case d := <-s.drained:
				s.finish(d)
			case <-stuck:
				r.drained = true
			}
		}
	}
	s.name()
	res := Result{Rank: -1}
	switch {
	case s.forced != nil:
		res = *s.forced
	case s.first != nil:
		res = Result{Code: code(s.first.status), Rank: s.first.index, Reason: s.first.reason()}
	}
	s.out.say(Event{
		Kind: Ended, Rank: -1, Code: res.Code, Seconds: time.Since(s.begun).Seconds(), Message: s.summary(),
	})
	lost := s.out.close(2 * time.Second)
	if lost != nil && res.Code == 0 {
		res.Code = lostCode(lost)
	}
	return res, lost
}

// summary is one line on all ranks when any failed, grouped by how they ended.
func (s *supervisor) summary() string {
	if len(s.ranks) < 2 || !slices.ContainsFunc(s.ranks, (*rank).failed) {
		return ""
	}
	var order []string
	groups := map[string][]int{}
	for _, r := range s.ranks {
		how := "still running"
		switch {
		case r.reaped && r.status.Signaled():
			how = signalName(r.status.Signal())
			if r.status.Signal() == r.sent {
				how += " from weft"
			}
		case r.reaped:
			how = fmt.Sprintf("exit status %d", r.status.ExitStatus())
		}
		if groups[how] == nil {
			order = append(order, how)
		}
		groups[how] = append(groups[how], r.index)
	}
	var parts []string
	for _, how := range order {
		noun := "rank "
		if len(groups[how]) > 1 {
			noun = "ranks "
		}
		parts = append(parts, noun+topology.FormatList(groups[how])+": "+how)
	}
	return strings.Join(parts, "; ")
}
