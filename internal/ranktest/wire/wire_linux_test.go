package wire_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/internal/ranktest/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial connects from host 1 to host 0.
func dial(t *testing.T, w *wire.Wire) (near, far net.Conn) {
	t.Helper()
	var l net.Listener
	if err := w.In(0, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(w.Address(0), 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := w.In(1, func() (err error) {
		far, err = net.DialTimeout("tcp", l.Addr().String(), 30*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
	})
	return near, far
}

func TestWire(t *testing.T) {
	w := wire.New(t)
	near, far := dial(t, w)
	older := w.Connections()
	near2, far2 := dial(t, w)
	say := func(from, to net.Conn, wait time.Duration) error {
		t.Helper()
		if _, err := from.Write([]byte("hello")); err != nil {
			return err
		}
		_ = to.SetReadDeadline(time.Now().Add(wait))
		_, err := io.ReadFull(to, make([]byte, 5))
		return err
	}
	for _, c := range [][2]net.Conn{{near, far}, {far, near}} {
		if err := say(c[0], c[1], 30*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	for begun := time.Now(); w.Received(0) != 5 || w.Received(1) != 5; time.Sleep(time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("host 0 says that it has received %d bytes, host 1 %d; each was sent 5", w.Received(0), w.Received(1))
		}
	}
	w.SetBoth(wire.Way{Delay: 20 * time.Millisecond, Loss: 0.05})
	begun := time.Now()
	if err := say(near, far, 30*time.Second); err != nil || time.Since(begun) < 20*time.Millisecond {
		t.Errorf("over a slow wire: %v after %v", err, time.Since(begun))
	}
	w.SetBoth(wire.Way{})
	w.Set(0, wire.Way{Cut: true})
	if err := say(near, far, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("over a cut wire: %v", err)
	}
	w.Set(0, wire.Way{})
	_ = far.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadFull(far, make([]byte, 5)); err != nil {
		t.Errorf("TCP does not repeat what was lost: %v", err)
	}
	w.Reset(older)
	if err := say(near2, far2, 30*time.Second); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the receiver of a connection that was reset: %v", err)
	}
	_ = near2.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := near2.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("its sender: %v", err)
	}
	if err := say(near, far, 30*time.Second); err != nil {
		t.Errorf("an older connection: %v", err)
	}
	if w.Repair() == 0 {
		t.Error("nothing was reset")
	}
	near3, far3 := dial(t, w)
	if err := say(far3, near3, 30*time.Second); err != nil {
		t.Error(err)
	}
}
