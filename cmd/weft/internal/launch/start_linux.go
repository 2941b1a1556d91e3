package launch

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft/cmd/weft/internal/hosts"
	"github.com/weftgo/weft/cmd/weft/internal/topology"
)

// start starts all ranks, or stops at the first that cannot be.
func (s *supervisor) start(program string) error {
	j := s.job
	if j.Hosts > 0 {
		network, err := hosts.New(j.Hosts)
		if err != nil {
			return err
		}
		s.network = network
	}
	var address string
	if err := s.on(0, func() (err error) {
		address, s.port, err = reservePort(s.address(0))
		return err
	}); err != nil {
		return err
	}
	var secret [32]byte
	rand.Read(secret[:]) // never fails
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	pins, err := s.pins()
	if err != nil {
		return err
	}
	if s.ledger, err = openLedger(j.Size); err != nil {
		return err
	}
	argv := append([]string{j.Program}, j.Args...)
	for i := range j.Size {
		env := environment(os.Environ(), j.Env)
		host, local, locals := j.place(i)
		env = append(env,
			envRank+"="+strconv.Itoa(i), envLocalRank+"="+strconv.Itoa(local),
			envSize+"="+strconv.Itoa(j.Size), envLocalSize+"="+strconv.Itoa(locals),
			envAddress+"="+address, envEnded+"="+ledgerPath(s.ledger), envSecret+"="+hex.EncodeToString(secret[:]))
		stdin := null
		if i == 0 && j.Stdin != nil {
			stdin = j.Stdin
		}
		var pin []int
		if pins != nil {
			pin = pins[i]
		}
		if err := s.on(host, func() error { return s.startRank(i, program, argv, env, stdin, pin) }); err != nil {
			return fmt.Errorf("starting rank %d: %w", i, err)
		}
	}
	return nil
}

// on runs f with this thread on one of the job's hosts.
func (s *supervisor) on(host int, f func() error) error {
	if s.network == nil {
		return f()
	}
	return s.network.In(host, f)
}

// address is that of one of the job's hosts, which is this host's loopback interface unless it has several.
func (s *supervisor) address(host int) netip.Addr {
	if s.network == nil {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return s.network.Address(host)
}

// reservePort finds a free port of an address and keeps it free for rank 0. A socket that is bound but
// does not listen keeps the kernel from giving the port to a process that asks for any port. A
// listener that asks for this very port, as rank 0 will, gets it because both sides set
// SO_REUSEADDR, the default for Go's listeners and common elsewhere. The port is therefore never
// free for others, and rank 0's program need not know of this.
func reservePort(at netip.Addr) (address string, port *os.File, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("reserving a port: %w", err)
	}
	port = os.NewFile(uintptr(fd), "reserved port")
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return "", nil, errors.Join(fmt.Errorf("reserving a port: %w", err), port.Close())
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: at.As4()}); err != nil {
		return "", nil, errors.Join(fmt.Errorf("reserving a port: %w", err), port.Close())
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("reserving a port: %w", err), port.Close())
	}
	return netip.AddrPortFrom(at, uint16(name.(*unix.SockaddrInet4).Port)).String(), port, nil
}

// pins decides which CPUs each rank gets, nil being any.
func (s *supervisor) pins() ([][]int, error) {
	if s.job.Bind == BindOff {
		return nil, nil
	}
	allowed, err := topology.Allowed()
	if err == nil && s.job.Bind == BindAuto && s.job.Size > len(allowed) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if s.job.Size > len(allowed) {
		return nil, fmt.Errorf("%d ranks and %d CPUs: --bind on needs one for each rank; take --bind auto or off",
			s.job.Size, len(allowed))
	}
	return topology.Slices(os.DirFS("/"), allowed, s.job.Size)
}

func (s *supervisor) startRank(index int, program string, argv, env []string, stdin *os.File, pin []int) error {
	outRead, outWrite, err := outputPipe()
	if err != nil {
		return err
	}
	defer syscall.Close(outWrite)
	errRead, errWrite, err := outputPipe()
	if err != nil {
		outRead.Close()
		return err
	}
	defer syscall.Close(errWrite)
	files := []uintptr{stdin.Fd(), uintptr(outWrite), uintptr(errWrite)}
	pid, err := forkPinned(pin, program, argv, &syscall.ProcAttr{
		Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	runtime.KeepAlive(stdin)
	if err != nil {
		outRead.Close()
		errRead.Close()
		return err
	}
	r := &rank{index: index, pid: pid, started: time.Now(), streams: []*os.File{outRead, errRead}}
	s.ranks = append(s.ranks, r)
	s.out.say(Event{Kind: Started, Rank: index, PID: pid, CPUs: topology.FormatList(pin)})
	ended := make(chan struct{}, 2)
	for i, name := range []string{"stdout", "stderr"} {
		go func() {
			readLines(r.streams[i], func(line string) { s.out.line(index, name, line) })
			r.streams[i].Close()
			ended <- struct{}{}
		}()
	}
	go func() {
		<-ended
		<-ended
		s.drained <- r
	}()
	return nil
}

// forkPinned starts a process whose affinity is pin from its first instruction on:
// it inherits the affinity of this thread.
func forkPinned(pin []int, program string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	if pin != nil {
		before, err := topology.Allowed()
		if err != nil {
			return 0, err
		}
		if err := topology.Pin(pin); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, topology.Pin(before)) }()
	}
	return syscall.ForkExec(program, argv, attr)
}

// outputPipe returns a pipe whose reading end is polled by the runtime and whose
// writing end blocks, as programs expect of their standard output.
func outputPipe() (r *os.File, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, fmt.Errorf("pipe2: %w", err)
	}
	if err := syscall.SetNonblock(p[0], true); err != nil {
		syscall.Close(p[0])
		syscall.Close(p[1])
		return nil, 0, err
	}
	return os.NewFile(uintptr(p[0]), "pipe"), p[1], nil
}

// unexecutable are the reasons why an existing file cannot be executed.
var unexecutable = []error{
	os.ErrPermission, exec.ErrDot, syscall.EISDIR, syscall.ENOTDIR, syscall.ENOEXEC, syscall.ELOOP, syscall.ENAMETOOLONG,
	syscall.ETXTBSY, syscall.E2BIG, syscall.ELIBBAD,
}

// startCode is the shell's exit status for a program that did not start.
func startCode(err error) int {
	switch {
	case errors.Is(err, hosts.ErrForbidden):
		return codeForbidden
	case errors.Is(err, os.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return CodeNotFound
	case slices.ContainsFunc(unexecutable, func(reason error) bool { return errors.Is(err, reason) }):
		return CodeNotExecutable
	}
	return 1
}
