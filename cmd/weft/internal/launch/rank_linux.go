package launch

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type rank struct {
	index    int
	pid      int
	started  time.Time
	reaped   bool
	drained  bool // both of its streams have ended
	reported bool // its exit event is out
	status   syscall.WaitStatus
	seconds  float64
	sent     syscall.Signal // the last deadly signal that the launcher sent or forwarded
	streams  []*os.File
}

func (r *rank) failed() bool { return r.reaped && code(r.status) != 0 }

// crashed says that a signal which the launcher did not send ended the rank.
func (r *rank) crashed() bool { return r.status.Signaled() && r.status.Signal() != r.sent }

// reason says in words how a rank ended.
func (r *rank) reason() string {
	after := time.Duration(r.seconds * float64(time.Second)).Round(time.Millisecond)
	if !r.status.Signaled() {
		return fmt.Sprintf("exit status %d after %v", r.status.ExitStatus(), after)
	}
	sig := r.status.Signal()
	text := fmt.Sprintf("killed by signal %d (%s) after %v", int(sig), signalName(sig), after)
	switch {
	case sig == r.sent:
		text += ", as asked"
	case r.status.CoreDump():
		text += ", core dumped"
	}
	return text
}

func code(status syscall.WaitStatus) int {
	if status.Signaled() {
		return codeSignal + int(status.Signal())
	}
	return status.ExitStatus()
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return "signal " + strconv.Itoa(int(sig))
}
