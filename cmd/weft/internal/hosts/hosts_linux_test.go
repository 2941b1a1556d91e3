package hosts

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// need skips a test where namespaces are forbidden.
func need(t *testing.T) {
	t.Helper()
	if Permitted() {
		return
	}
	if os.Getenv("WEFT_REQUIRE_NETNS") == "1" {
		t.Fatal("network namespaces are forbidden, and WEFT_REQUIRE_NETNS=1")
	}
	t.Skip("network namespaces are forbidden here")
}

// locked runs f on a thread of its own, which ends with it.
func locked(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestNetwork: every host has its address alone, reaches every other one, and nothing shows outside.
func TestNetwork(t *testing.T) {
	need(t)
	before, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	const n = 3
	locked(t, func() error {
		w, err := New(n)
		if err != nil {
			return err
		}
		defer w.Close()
		for i := range n {
			var l net.Listener
			if err := w.In(i, func() (err error) {
				l, err = net.Listen("tcp", net.JoinHostPort(w.Address(i).String(), "7777"))
				return err
			}); err != nil {
				return err
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = c.Write([]byte{byte(i)})
					c.Close()
				}
			}()
		}
		for i := range n {
			for j := range n {
				if err := w.In(i, func() error { return reach(w.Address(j).String(), byte(j), 30*time.Second) }); err != nil {
					return err
				}
			}
		}
		if err := reach(w.Address(1).String(), 1, 100*time.Millisecond); err == nil {
			return errors.New("a host is reached from outside")
		}
		return nil
	})
	after, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != len(before) {
		t.Errorf("interfaces before: %v; after: %v", before, after)
	}
}

// reach connects by blocking system calls of this thread, for Go's dialer may use others.
func reach(address string, want byte, within time.Duration) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	limit := unix.NsecToTimeval(within.Nanoseconds())
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)); err != nil {
		return err
	}
	a := &unix.SockaddrInet4{Port: 7777}
	copy(a.Addr[:], net.ParseIP(address).To4())
	if err := unix.Connect(fd, a); err != nil {
		return err
	}
	got, err := io.ReadAll(f)
	if err == nil && (len(got) != 1 || got[0] != want) {
		err = errors.New("another host answered")
	}
	return err
}

func TestTooManyHosts(t *testing.T) {
	for _, n := range []int{-1, 0, Most + 1} {
		if _, err := New(n); err == nil {
			t.Errorf("%d hosts are made", n)
		}
	}
}
