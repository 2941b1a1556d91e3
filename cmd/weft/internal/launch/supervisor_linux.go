package launch

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// stage is how far the end of a job has come. It only grows.
type stage int

const (
	running     stage = iota
	waiting           // something failed: the others may end by themselves
	terminating       // SIGTERM sent
	killing           // SIGKILL sent, and again to whatever comes to light
)

type supervisor struct {
	job     *Job
	ranks   []*rank
	out     *mux
	drained chan *rank
	begun   time.Time
	port    *os.File // keeps rank 0's port for rank 0

	stage    stage
	timer    *time.Timer // to the next stage
	verdict  *time.Timer // to the naming of the first failure
	kills    int         // rounds of SIGKILL so far
	notices  int         // said so far
	first    *rank       // the failure to blame, final once named is set
	named    bool
	forced   *Result // an end that no rank caused: timeout, lost output, failed start
	leftover bool    // ranks are gone, others remain
}

// Run starts the ranks and returns when they and all their descendants are gone.
// When gone closes, the job ends at once; nil never does. Run reaps every child of
// this process and handles its signals, so the process should do nothing else
// meanwhile.
//
// An error means that the job could not be run; how the ranks fared is in Result.
func (j *Job) Run(gone <-chan struct{}) (Result, error) {
	if err := j.Validate(); err != nil {
		return Result{Code: 2, Rank: -1}, err
	}
	program, err := exec.LookPath(j.Program)
	if err != nil {
		return Result{Code: startCode(err), Rank: -1}, err
	}
	if err := adopt(); err != nil {
		return Result{Code: 1, Rank: -1}, err
	}
	type outcome struct {
		res Result
		err error
	}
	end := make(chan outcome, 1)
	go func() {
		// Never unlocked: the ranks' death signal is tied to this thread, and the
		// thread ends with this goroutine, after the last of them.
		runtime.LockOSThread()
		res, err := j.supervise(program, gone)
		end <- outcome{res, err}
	}()
	o := <-end
	return o.res, o.err
}

func (j *Job) supervise(program string, gone <-chan struct{}) (Result, error) {
	s := &supervisor{
		job: j, begun: time.Now(),
		// Per rank: start, exit. Per job: failure, end, a few notices, and one for
		// each signal, which are bounded below.
		out:     newMux(j.Sink, 2*j.Size+maxNotices+8),
		drained: make(chan *rank, j.Size),
		timer:   stopped(), verdict: stopped(),
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	// A closed output must be an error from write, not our death.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	// In a process group of our own we are in the terminal's background.
	signal.Ignore(syscall.SIGTTOU)

	var timeout <-chan time.Time
	if j.Timeout > 0 {
		timeout = time.After(j.Timeout)
	}

	startErr := s.start(program)
	defer s.port.Close() // harmless on nil
	if startErr != nil {
		s.forced = &Result{Code: startCode(startErr), Rank: -1, Reason: startErr.Error()}
		s.enter(killing)
	}
	interrupts := 0
	for reap(s.ended) {
		if !s.leftover && s.allReaped() {
			// Helpers such as Python's resource tracker end a moment after their
			// parent; only then are they in the way.
			s.leftover = true
			if s.stage < terminating {
				s.stage = waiting
				s.timer.Reset(min(j.Grace, 500*time.Millisecond))
			}
		}
		if s.stage == killing {
			s.signal(syscall.SIGKILL)
		}
		select {
		case <-died:
		case r := <-s.drained:
			s.finish(r)
		case <-s.verdict.C:
			s.name()
		case <-s.timer.C:
			if s.stage == killing && s.kills > 100 {
				s.forced = &Result{Code: 1, Rank: -1, Reason: fmt.Sprintf("processes %v do not die", children())}
				return s.end(), nil
			}
			s.enter(min(s.stage+1, killing))
		case <-timeout:
			s.forced = &Result{Code: CodeTimeout, Rank: -1, Reason: fmt.Sprintf("timeout after %v", j.Timeout)}
			s.notice("%s: ending all ranks", s.forced.Reason)
			s.enter(terminating)
		case err := <-s.out.broken:
			if s.forced == nil {
				s.forced = &Result{Code: codeSignal + int(syscall.SIGPIPE), Rank: -1, Reason: fmt.Sprintf("output lost: %v", err)}
			}
			s.enter(terminating)
		case sig := <-signals:
			n := sig.(syscall.Signal)
			if n == syscall.SIGINT {
				interrupts++
			}
			if interrupts > 1 && n == syscall.SIGINT {
				s.notice("interrupted again: killing all ranks")
				s.enter(killing)
				break
			}
			s.forward(n)
		case <-gone:
			gone = nil
			s.forced = &Result{Code: codeSignal + int(syscall.SIGKILL), Rank: -1, Reason: "the launcher was killed"}
			s.enter(killing)
		}
	}
	return s.end(), startErr
}

// enter goes to a stage unless it is already passed; entering killing again
// repeats the kill.
func (s *supervisor) enter(next stage) {
	if next < s.stage || (next == s.stage && next != killing) {
		return
	}
	s.stage = next
	switch next {
	case waiting:
		s.timer.Reset(s.job.Grace)
	case terminating:
		if s.leftover {
			if left := children(); len(left) > 0 {
				s.notice("ending %d processes that the ranks left behind", len(left))
			}
		}
		s.signal(syscall.SIGTERM)
		s.signal(syscall.SIGCONT) // a stopped process cannot end itself
		s.timer.Reset(s.job.Grace)
	case killing:
		s.kills++
		s.signal(syscall.SIGKILL)
		s.timer.Reset(100 * time.Millisecond)
	}
}

// forward passes a signal that we were sent on to every rank.
func (s *supervisor) forward(sig syscall.Signal) {
	s.signal(sig)
	switch sig {
	case syscall.SIGTERM, syscall.SIGHUP:
		if s.stage < terminating {
			s.stage = terminating
			s.timer.Reset(s.job.Grace)
		}
	}
}

// signal sends sig to the process group of every living rank, and to adopted
// processes when the job is ending.
func (s *supervisor) signal(sig syscall.Signal) {
	pids := map[int]bool{}
	for _, r := range s.ranks {
		if r.reaped {
			continue
		}
		pids[r.pid] = true
		if deadly(sig) {
			r.sent = sig
		}
		// The group's leader is unreaped, so the group's id is still its own.
		_ = syscall.Kill(-r.pid, sig)
	}
	if s.stage < terminating {
		return
	}
	for _, pid := range children() {
		if !pids[pid] {
			_ = syscall.Kill(pid, sig)
		}
	}
}

func deadly(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGTSTP, syscall.SIGCONT:
		return false
	}
	return true
}

func (s *supervisor) allReaped() bool {
	return !slices.ContainsFunc(s.ranks, func(r *rank) bool { return !r.reaped })
}

// maxNotices bounds what the loop may say besides the ranks' starts and ends.
const maxNotices = 16

func (s *supervisor) notice(format string, args ...any) {
	if s.notices++; s.notices <= maxNotices {
		s.out.say(Event{Kind: Notice, Rank: -1, Message: fmt.Sprintf(format, args...)})
	}
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
