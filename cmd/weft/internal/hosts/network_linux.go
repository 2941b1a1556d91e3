package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrForbidden: the kernel, or the container around this process, allows no network namespaces.
var ErrForbidden = errors.New("no network namespaces can be made here")

// Most is how many hosts a network has at most: the bridge's own port limit is above it.
const Most = 250

// Network is a number of hosts.
type Network struct {
	outside *os.File // the namespace that this process came from
	hub     *os.File
	hosts   []*os.File
}

// interfaceName is that of each host's interface.
const interfaceName = "weft"

// New makes hosts. The calling goroutine must be locked to its thread, for the methods too.
func New(n int) (*Network, error) {
	if n < 1 || n > Most {
		return nil, fmt.Errorf("%d hosts: want 1 to %d", n, Most)
	}
	w := &Network{}
	err := w.make(n)
	if err != nil {
		w.Close()
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
			err = fmt.Errorf("%w (%w): be root where they are allowed, or take one host", ErrForbidden, err)
		}
		return nil, err
	}
	return w, nil
}

func (w *Network) make(n int) (err error) {
	if w.outside, err = current(); err != nil {
		return err
	}
	if w.hub, err = w.unshare(); err != nil {
		return err
	}
	if err := w.in(w.hub, func() error { return request(newBridge("hub")) }); err != nil {
		return fmt.Errorf("make a bridge: %w", err)
	}
	for i := range n {
		host, err := w.unshare()
		if err != nil {
			return err
		}
		w.hosts = append(w.hosts, host)
		port := fmt.Sprintf("port%d", i)
		if err := w.in(w.hub, func() error {
			if err := request(newPair(port, interfaceName, int(host.Fd()))); err != nil {
				return err
			}
			return attach(port, "hub")
		}); err != nil {
			return fmt.Errorf("join host %d to the bridge: %w", i, err)
		}
		if err := w.In(i, func() error { return address(interfaceName, w.Address(i)) }); err != nil {
			return fmt.Errorf("give host %d its address: %w", i, err)
		}
	}
	return nil
}

// current is this thread's namespace.
func current() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// unshare makes a namespace, with the loopback interface up, and leaves this thread where it was.
func (w *Network) unshare() (f *os.File, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("unshare: %w", err)
	}
	defer func() { err = errors.Join(err, enter(w.outside)) }()
	if err := up("lo"); err != nil {
		return nil, fmt.Errorf("loopback interface: %w", err)
	}
	return current()
}

func enter(f *os.File) error {
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	return nil
}

// in runs f with this thread in a namespace.
func (w *Network) in(space *os.File, f func() error) (err error) {
	if err := enter(space); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, enter(w.outside)) }()
	return f()
}

// In runs f on this thread inside a host: sockets that it makes and processes that it starts are the host's.
func (w *Network) In(host int, f func() error) error { return w.in(w.hosts[host], f) }

// Address is a host's.
func (w *Network) Address(host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, 0, byte(host + 1)})
}

// Close lets go of the hosts, which last as long as processes run in them.
func (w *Network) Close() {
	for _, f := range append(w.hosts, w.hub, w.outside) {
		if f != nil {
			f.Close()
		}
	}
}

// Permitted says whether this process may make namespaces by itself.
func Permitted() bool {
	permitted := make(chan bool)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine, and the namespace with it
		permitted <- unix.Unshare(unix.CLONE_NEWNET) == nil
	}()
	return <-permitted
}

// Privileges has a process start in a user namespace of its own, in which it may make network namespaces and
// its user is called 0. It starts in such a one, too: from a host it could not go back to one that it does
// not own.
func Privileges(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
}
