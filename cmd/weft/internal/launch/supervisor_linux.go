package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/hosts"
)

// stage is how far the end of a job has come. It only grows.
type stage int

const (
	running     stage = iota
	waiting           // something failed: the others may end by themselves
	terminating       // SIGTERM sent
	killing           // SIGKILL sent, and again to every process found later
)

// mostKills bounds the rounds of SIGKILL, a tenth of a second each.
const mostKills = 100

type supervisor struct {
	job     *Job
	ranks   []*rank
	out     *mux
	drained chan *rank
	died    chan os.Signal // a child's end
	signals chan os.Signal // to be passed on
	timeout <-chan time.Time
	begun   time.Time
	network *hosts.Network // nil unless the job has hosts
	port    *os.File       // keeps rank 0's port for rank 0
	ledger  *os.File       // gives ranks the list of those that have ended
	buried  []*rank        // that have ended and are not in the ledger

	stage      stage
	timer      *time.Timer // to the next stage
	verdict    *time.Timer // to the naming of the first failure
	interrupts int         // SIGINTs received
	kills      int         // rounds of SIGKILL so far
	notices    int         // said so far
	first      *rank       // the failure to blame, final once named is set
	named      bool
	forced     *Result // an end that no rank caused: timeout, lost output, failed start
	leftover   bool    // ranks are gone, others remain
}

// Run starts the ranks and returns when they and all their descendants are gone.
// When gone closes, the job ends at once; nil never does. Run reaps every child of
// this process and handles its signals, so the process should do nothing else
// meanwhile.
//
// An error means that the job could not be run, or that its output could not be written; how the
// ranks fared is in Result.
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

// supervise is the loop: it starts the ranks and goes on until no child is left.
func (j *Job) supervise(program string, gone <-chan struct{}) (Result, error) {
	s := newSupervisor(j)
	defer s.listen()()
	if j.Timeout > 0 {
		s.timeout = time.After(j.Timeout)
	}
	startErr := s.start(program)
	defer s.port.Close() // harmless on nil
	defer s.ledger.Close()
	if s.network != nil {
		defer s.network.Close()
	}
	var lost error // why output can't be written any more
	if startErr != nil {
		s.force(killing, startCode(startErr), startErr.Error())
	}
	for reap(s.ended) {
		s.record()
		s.tidy()
		select {
		case <-s.died:
		case r := <-s.drained:
			s.finish(r)
		case <-s.verdict.C:
			s.name()
		case <-s.timer.C:
			if s.kills > mostKills {
				s.force(killing, 1, fmt.Sprintf("processes %v do not die", children()))
				res, late := s.end()
				return res, errors.Join(startErr, outputError(lost, late))
			}
			s.enter(min(s.stage+1, killing))
		case <-s.timeout:
			reason := fmt.Sprintf("timeout after %v", j.Timeout)
			s.notice("%s: ending all ranks", reason)
			s.force(terminating, CodeTimeout, reason)
		case err := <-s.out.broken:
			lost = err
			if s.forced == nil {
				s.force(terminating, lostCode(err), fmt.Sprintf("output lost: %v", err))
			}
			s.enter(terminating)
		case sig := <-s.signals:
			s.heard(sig.(syscall.Signal))
		case <-gone:
			gone = nil
			s.force(killing, codeSignal+int(syscall.SIGKILL), "the launcher was killed")
		}
	}
	res, late := s.end()
	return res, errors.Join(startErr, outputError(lost, late))
}

// outputError says which output was lost, while ranks ran or at the end. The reader that closed a
// pipe knows, so it gets no message.
func outputError(errs ...error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, syscall.EPIPE) {
			return fmt.Errorf("output lost: %w", err)
		}
	}
	return nil
}

// lostCode is the exit status of a job whose output was lost: that of a program in a pipeline whose
// reader has gone, or of a failure.
func lostCode(err error) int {
	if errors.Is(err, syscall.EPIPE) {
		return codeSignal + int(syscall.SIGPIPE)
	}
	return 1
}

func newSupervisor(j *Job) *supervisor {
	return &supervisor{
		job: j, begun: time.Now(),
		// Per rank: start, exit. Per job: failure, end, a few notices, and one for
		// each signal, which are bounded below.
		out:     newMux(j.Sink, 2*j.Size+maxNotices+8),
		drained: make(chan *rank, j.Size),
		died:    make(chan os.Signal, 1), signals: make(chan os.Signal, 16),
		timer: stopped(), verdict: stopped(),
	}
}

// listen receives this process's signals until the returned function is called.
func (s *supervisor) listen() (stop func()) {
	signal.Notify(s.died, syscall.SIGCHLD)
	signal.Notify(s.signals, forwarded...)
	// A closed output must be an error from write, not our death.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	// In a process group of our own we are in the terminal's background.
	signal.Ignore(syscall.SIGTTOU)
	return func() {
		signal.Stop(s.died)
		signal.Stop(s.signals)
		signal.Stop(pipe)
	}
}

// force ends the job for a reason that is no rank's.
func (s *supervisor) force(next stage, code int, reason string) {
	s.forced = &Result{Code: code, Rank: -1, Reason: reason}
	s.enter(next)
}

// tidy ends the processes that the ranks left behind, and those that appear while it kills.
func (s *supervisor) tidy() {
	if !s.leftover && s.allReaped() {
		// Helpers such as Python's resource tracker end a moment after their
		// parent; only then are they in the way.
		s.leftover = true
		if s.stage < terminating {
			s.stage = waiting
			s.timer.Reset(min(s.job.Grace, 500*time.Millisecond))
		}
	}
	if s.stage == killing {
		s.signal(syscall.SIGKILL)
	}
}

// heard acts on a signal to the job. A second interrupt is impatience.
func (s *supervisor) heard(sig syscall.Signal) {
	if sig == syscall.SIGINT {
		if s.interrupts++; s.interrupts > 1 {
			s.notice("interrupted again: killing all ranks")
			s.enter(killing)
			return
		}
	}
	s.forward(sig)
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
			switch left := children(); len(left) {
			case 0:
			case 1:
				s.notice("ending a process that the ranks left behind")
			default:
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

// maxNotices bounds the loop's events besides the ranks' starts and ends.
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
