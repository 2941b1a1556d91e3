package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connPair is two ends of one connection.
func connPair() (a, b *conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]*conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err != nil {
			return nil, nil, err
		}
		if err := f.Close(); err != nil {
			return nil, nil, err
		}
		if ends[i], err = newConn(c.(*net.UnixConn)); err != nil {
			return nil, nil, err
		}
	}
	return ends[0], ends[1], nil
}

func pair(t *testing.T) (a, b *conn) {
	t.Helper()
	a, b, err := connPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.close()
		b.close()
	})
	return a, b
}

// A write that its context ends leaves a connection on which the next write and what was sent
// before arrive.
func TestWriteEndsWithItsContext(t *testing.T) {
	checkFDs(t)
	a, b := pair(t)
	sent := 0
	var err error
	for err == nil {
		if err = a.write(within(t, 50*time.Millisecond),
			frame{kind: kindMessage, id: uint64(sent), payload: make([]byte, MaxMessage)}, -1); err == nil {
			sent++
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) || sent == 0 {
		t.Fatalf("after %d frames: %v", sent, err)
	}
	cancelled, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
	if err := a.write(cancelled, frame{kind: kindMessage, payload: make([]byte, MaxMessage)}, -1); !errors.Is(err, cause) {
		t.Fatal(err)
	}
	last := make(chan error, 1)
	go func() { last <- a.write(within(t, patience), frame{kind: kindGoodbye}, -1) }()
	for i := range sent {
		p, err := b.read()
		if err != nil || p.kind != kindMessage || p.id != uint64(i) || len(p.payload) != MaxMessage {
			t.Fatalf("frame %d: %v %d, %v", i, p.kind, p.id, err)
		}
	}
	if p, err := b.read(); err != nil || p.kind != kindGoodbye {
		t.Fatal(p.kind, err)
	}
	if err := <-last; err != nil {
		t.Fatal(err)
	}
}

// The kernel answers a read with ECONNRESET, before what is still to be read, when the peer closed
// without reading everything.
func TestReadBehindReset(t *testing.T) {
	checkFDs(t)
	a, b := pair(t)
	ctx := within(t, patience)
	for _, err := range []error{
		a.write(ctx, frame{kind: kindMessage}, -1),
		b.write(ctx, frame{kind: kindMessage, payload: []byte("last words")}, -1),
		b.write(ctx, frame{kind: kindGoodbye}, -1),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.close()
	for _, want := range []frameKind{kindMessage, kindGoodbye} {
		if p, err := a.read(); err != nil || p.kind != want {
			t.Fatalf("%v, %v; want %v", p.kind, err, want)
		}
	}
	if _, err := a.read(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := a.write(ctx, frame{kind: kindMessage}, -1); !errors.Is(err, unix.EPIPE) {
		t.Fatal(err)
	}
}

// limitedSender plays an ordinary user whose limit of open files also limits the descriptors that
// are under way, and whose peer has no room for what arrives.
func limitedSender() {
	fail := func(err error) {
		fmt.Println(err)
		os.Exit(1)
	}
	a, b, err := connPair()
	if err != nil {
		fail(err)
	}
	const limit = 24
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		fail(err)
	}
	sent := 0
	for err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if err = a.write(ctx, frame{kind: kindDescriptor, id: uint64(sent)}, 0); err == nil {
			sent++
		}
		cancel()
	}
	if !errors.Is(err, context.DeadlineExceeded) || sent < limit/2 || sent > 2*limit {
		fail(fmt.Errorf("after %d descriptors: %w", sent, err))
	}
	last := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		last <- a.write(ctx, frame{kind: kindDescriptor, id: uint64(sent)}, 0)
	}()
	got, lost := 0, 0
	for range sent + 1 {
		p, err := b.read()
		if err != nil {
			fail(err)
		}
		switch {
		case p.fd >= 0 && !p.lost:
			got++ // and keep it
		case p.fd < 0 && p.lost:
			lost++
			if o, err := offerOf(p); err != nil || !errors.Is(o.err, ErrNoDescriptor) {
				fail(fmt.Errorf("offer %v, %w", o, err))
			}
		default:
			fail(fmt.Errorf("descriptor %d, lost %v", p.fd, p.lost))
		}
	}
	if err := <-last; err != nil {
		fail(err)
	}
	if got == 0 || lost == 0 {
		fail(fmt.Errorf("got %d, lost %d", got, lost))
	}
	fmt.Println("ok")
}

func TestLimitOfOpenFiles(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=limited")
	if os.Geteuid() == 0 { // root is not limited
		runAs(t, cmd, 65531)
	}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("%s%v", out, err)
	}
}
