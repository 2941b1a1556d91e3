package launch

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/hosts"
)

// forwarded are the signals that reach the ranks. SIGWINCH is not among them: the
// ranks have no terminal.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGCONT,
}

// Guard starts this program once more, with the same arguments, as the supervisor
// (see [Lifeline]), and returns its exit status when everything below is gone. It
// reaps every child of this process, so the process should do nothing else.
func Guard() (code int, err error) { return guard(&syscall.SysProcAttr{}) }

// GuardHosts is Guard for a job with Hosts. Where this process may not make them, the supervisor gets a user
// namespace of its own, in which it may and in which this user is called 0.
func GuardHosts() (code int, err error) {
	attr := &syscall.SysProcAttr{}
	if !hosts.Permitted() {
		hosts.Privileges(attr)
	}
	return guard(attr)
}

func guard(attr *syscall.SysProcAttr) (code int, err error) {
	if err := adopt(); err != nil {
		return 0, err
	}
	// No signal may go missing between the start and the first wait.
	signals := make(chan os.Signal, 16)
	for _, sig := range forwarded {
		if !signal.Ignored(sig) { // nohup(1) stays in force
			signal.Notify(signals, sig)
		}
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(signals)
	defer signal.Stop(died)

	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer w.Close()
	// Its own process group: the terminal's signals and a kill of our group must not take the supervisor
	// along.
	attr.Setpgid = true
	env := append(environment(os.Environ(), nil), lifelineEnv+"=3")
	supervisor, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2, r.Fd()},
		Sys:   attr,
	})
	runtime.KeepAlive(r)
	r.Close()
	if err != nil && attr.Cloneflags != 0 {
		return codeForbidden, fmt.Errorf("%w, nor user namespaces (%w): be root, or take one host", hosts.ErrForbidden, err)
	}
	if err != nil {
		return 0, fmt.Errorf("starting the supervisor: %w", err)
	}

	var status syscall.WaitStatus
	ended := false
	for !ended {
		reap(func(pid int, s syscall.WaitStatus) {
			if pid == supervisor {
				status, ended = s, true
			}
		})
		if ended {
			break
		}
		select {
		case <-died:
		case sig := <-signals:
			n := sig.(syscall.Signal)
			_ = syscall.Kill(supervisor, n) // unreaped, so the id is its own
			if n == syscall.SIGTSTP {
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			}
		}
	}
	// After an orderly end nothing is left. Otherwise the kernel has killed the ranks, and their
	// children are this process's now.
	killAll(died, 5*time.Second)
	if status.Signaled() {
		return codeSignal + int(status.Signal()), fmt.Errorf("the supervisor was killed by %s", signalName(status.Signal()))
	}
	return status.ExitStatus(), nil
}

// killAll kills children until none is left: each death may hand us grandchildren.
func killAll(died <-chan os.Signal, patience time.Duration) {
	deadline := time.After(patience)
	for reap(func(int, syscall.WaitStatus) {}) {
		for _, pid := range children() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-died:
		case <-time.After(20 * time.Millisecond): // a death may come between listing and waiting
		case <-deadline:
			return
		}
	}
}

// Lifeline reports whether this process is the supervisor that [Guard] started; gone is then closed
// when the guard has ended. It must be called, once, before anything else starts a process.
func Lifeline() (gone <-chan struct{}, ok bool) {
	fd, err := strconv.Atoi(os.Getenv(lifelineEnv))
	if err != nil {
		return nil, false
	}
	os.Unsetenv(lifelineEnv)
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, false
	}
	pipe, end := os.NewFile(uintptr(fd), "lifeline"), make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(io.Discard, pipe)
	}()
	return end, true
}
