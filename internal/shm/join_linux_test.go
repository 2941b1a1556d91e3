package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connectAll connects all listeners but those in absent, and returns the errors. Meshes are closed
// at the end of the test.
func connectAll(t *testing.T, ctx context.Context, listeners []*Listener, addrs []Address, absent ...int) []error {
	t.Helper()
	errs := make([]error, len(listeners))
	each(len(listeners), func(i int) {
		for _, a := range absent {
			if a == i {
				return
			}
		}
		m, err := listeners[i].Connect(ctx, i, addrs, nil)
		if errs[i] = err; err == nil {
			t.Cleanup(func() { m.Close() })
		}
	})
	return errs
}

func blames(t *testing.T, err error, peer int, cause error) {
	t.Helper()
	if p, ok := errors.AsType[*PeerError](err); !ok || p.Peer != peer || !errors.Is(err, cause) {
		t.Errorf("%v; want peer %d blamed for %v", err, peer, cause)
	}
}

func TestConnectTimeoutNamesTheMissing(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		listeners, addrs := listen(t, 4, of)
		errs := connectAll(t, within(t, 50*time.Millisecond), listeners, addrs, 1, 2)
		for _, i := range []int{0, 3} {
			// One that gives up may take the others with it; the first must name who is missing.
			if p, ok := errors.AsType[*PeerError](errs[i]); !ok || (p.Peer != 1 && p.Peer != 3-i) {
				t.Errorf("rank %d: %v", i, errs[i])
			}
		}
		if all := errors.Join(errs...).Error(); !strings.Contains(all, "peer 1: no answer") ||
			!errors.Is(errors.Join(errs...), context.DeadlineExceeded) {
			t.Error(all)
		}
		for i, l := range listeners {
			l.Close()
			if findMailbox(addrs[i].Token) != nil {
				t.Errorf("mailbox %d is left", i)
			}
		}
	})
}

func TestConnectSeesListenerClose(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		listeners, addrs := listen(t, 2, of)
		if err := listeners[0].Close(); err != nil {
			t.Fatal(err)
		}
		errs := connectAll(t, within(t, patience), listeners, addrs, 0)
		cause := ErrDied
		if of(0) == of(1) {
			cause = ErrLeft
		}
		blames(t, errs[1], 0, cause)
	})
}

func TestConnectComparesLists(t *testing.T) {
	layouts(t, func(t *testing.T, of func(i int) int) {
		listeners, addrs := listen(t, 4, of)
		each(4, func(i int) {
			list := addrs
			if i == 3 { // has two of the others swapped
				list = []Address{addrs[1], addrs[0], addrs[2], addrs[3]}
			}
			m, err := listeners[i].Connect(within(t, time.Second), i, list, nil)
			if err == nil {
				t.Errorf("rank %d connected", i)
				m.Close()
			}
		})

		listeners, addrs = listen(t, 2, of)
		errs := make([]error, 2)
		each(2, func(i int) {
			list := addrs
			if i == 1 {
				extra := addrs[0]
				extra.Token = random()
				extra.Process = random()
				list = append(list[:2:2], extra)
			}
			_, errs[i] = listeners[i].Connect(within(t, patience), i, list, nil)
		})
		for i, err := range errs {
			if of(0) == of(1) && errors.Is(err, ErrLeft) && errors.Is(errs[1-i], ErrMismatch) {
				continue // it looked when the other had given up
			}
			blames(t, err, 1-i, ErrMismatch)
		}
	})
}

func TestConnectRefusesLists(t *testing.T) {
	checkFDs(t)
	elsewhere := func(a []Address) []Address { a[1].Host = "elsewhere/00"; return a }
	for name, c := range map[string]struct {
		self int
		edit func([]Address) []Address
		want string
	}{
		"no position":      {-1, func(a []Address) []Address { return a }, "position -1"},
		"beyond the end":   {2, func(a []Address) []Address { return a }, "position 2"},
		"another's":        {1, func(a []Address) []Address { return a }, "not this listener's"},
		"another host":     {0, elsewhere, "not on this host"},
		"the same twice":   {0, func(a []Address) []Address { return append(a, a[1]) }, "same address"},
		"no such process":  {0, func(a []Address) []Address { a[1].PID = 1<<22 + 1; return a }, "no process"},
		"unusable address": {0, func(a []Address) []Address { a[1].Socket = ""; return a }, "malformed"},
	} {
		listeners, addrs := listen(t, 2, apart)
		_, err := listeners[0].Connect(within(t, patience), c.self, c.edit(addrs), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := listeners[0].Connect(within(t, patience), 0, addrs, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: used twice: %v", name, err)
		}
		listeners[1].Close()
	}
}

func dialRaw(t *testing.T, a Address) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix(network, nil, a.socketAddress())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Strangers that say nothing, or the wrong thing, neither get in nor keep anybody out, even if they
// are in a process of the job.
func TestStrangersWithinAProcessOfTheJob(t *testing.T) {
	checkFDs(t)
	listeners, addrs := listen(t, 3, apart)
	roster, err := listeners[0].checkMembers(0, addrs)
	if err != nil {
		t.Fatal(err)
	}
	good := greeting{from: 1, to: 0, token: addrs[0].Token, own: addrs[1].Token, roster: roster}
	var strangers []*net.UnixConn
	for _, edit := range []func(*greeting){
		func(g *greeting) { g.token[0]++ },
		func(g *greeting) { g.own[15]++ },
		func(g *greeting) { g.from = 0 },
		func(g *greeting) { g.from = 3 },
		func(g *greeting) { g.from = 2 },
		func(g *greeting) { g.to = 1 },
	} {
		g := good
		edit(&g)
		c := dialRaw(t, addrs[0])
		if _, err := c.Write(frame{kind: kindHello, payload: g.encode()}.append(nil)); err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, c)
	}
	for _, b := range [][]byte{
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		frame{kind: kindWelcome, payload: good.encode()}.append(nil),
		frame{kind: kindGoodbye}.append(nil),
		make([]byte, 100000),
	} {
		c := dialRaw(t, addrs[0])
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, c)
	}
	silent := dialRaw(t, addrs[0])
	strangers = append(strangers, silent)
	withRights := dialRaw(t, addrs[0])
	if _, _, err := withRights.WriteMsgUnix(frame{kind: kindDescriptor}.append(nil), unix.UnixRights(0), nil); err != nil {
		t.Fatal(err)
	}
	strangers = append(strangers, withRights)

	if err := errors.Join(connectAll(t, within(t, patience), listeners, addrs)...); err != nil {
		t.Fatal(err)
	}
	for i, c := range strangers {
		c.SetReadDeadline(time.Now().Add(patience))
		if n, err := c.Read(make([]byte, 1000)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stranger %d was told %d bytes, %v", i, n, err)
		}
	}
}

// A process that is not of the job is turned away whatever it knows.
func TestStrangersOfOtherProcesses(t *testing.T) {
	j := startJob(t, 2, 1)
	var a Address
	if err := a.UnmarshalBinary(j.addrs[0]); err != nil {
		t.Fatal(err)
	}
	var b Address
	if err := b.UnmarshalBinary(j.addrs[1]); err != nil {
		t.Fatal(err)
	}
	c := dialRaw(t, a)
	if _, err := c.Write(frame{
		kind:    kindHello,
		payload: greeting{from: 1, to: 0, token: a.Token, own: b.Token}.encode(),
	}.append(nil)); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		dialRaw(t, a)
	}
	j.connect()
	c.SetReadDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1000)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("told %d bytes, %v", n, err)
	}
	j.must(j.ranks(), request{Op: "exchange", XID: 1, Size: 4096})
}

// A peer of another version is named by both sides at once, with both versions, whether it dials or
// listens. What it says beyond the greeting may be laid out in any way.
func TestOtherVersion(t *testing.T) {
	const theirs = frameVersion + 8
	named := func(t *testing.T, err error, peer int) {
		t.Helper()
		blames(t, err, peer, ErrMismatch)
		for _, version := range []int{frameVersion, theirs} {
			if !strings.Contains(fmt.Sprint(err), fmt.Sprintf("version %d", version)) {
				t.Errorf("no version %d: %v", version, err)
			}
		}
	}
	of := func(f frame) []byte {
		b := f.append(nil)
		b[2] = theirs
		return b
	}
	t.Run("it dials", func(t *testing.T) {
		checkFDs(t)
		listeners, addrs := listen(t, 2, apart)
		roster, err := listeners[0].checkMembers(0, addrs)
		if err != nil {
			t.Fatal(err)
		}
		c := dialRaw(t, addrs[0])
		g := greeting{from: 1, to: 0, token: addrs[0].Token, own: addrs[1].Token, roster: roster}
		if _, err := c.Write(of(frame{kind: kindHello, payload: g.encode()})); err != nil {
			t.Fatal(err)
		}
		_, err = listeners[0].Connect(within(t, patience), 0, addrs, nil)
		named(t, err, 1)
		c.SetReadDeadline(time.Now().Add(patience))
		b := make([]byte, maxFrame)
		if n, err := c.Read(b); n < 3 || err != nil || b[2] != frameVersion {
			t.Errorf("it was told %d bytes, %v", n, err)
		}
		if err := listeners[1].Close(); err != nil {
			t.Fatal(err)
		}
	})
	for name, answer := range map[string]func(g greeting) []byte{
		"it listens":       func(g greeting) []byte { return of(frame{kind: kindWelcome, payload: g.encode()}) },
		"it answers oddly": func(greeting) []byte { return append(of(frame{kind: 200}), "what?"...) },
	} {
		t.Run(name, func(t *testing.T) {
			checkFDs(t)
			listeners, addrs := listen(t, 2, apart)
			if err := listeners[0].Close(); err != nil {
				t.Fatal(err)
			}
			socket, err := net.ListenUnix(network, addrs[0].socketAddress())
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			done := make(chan error)
			go func() {
				c, err := socket.AcceptUnix()
				if err == nil {
					_, err = c.Read(make([]byte, maxFrame))
				}
				if err == nil {
					_, err = c.Write(answer(greeting{from: 0, to: 1, token: addrs[1].Token, own: addrs[0].Token}))
					c.Close()
				}
				done <- err
			}()
			_, err = listeners[1].Connect(within(t, patience), 1, addrs, nil)
			named(t, err, 0)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("its address", func(t *testing.T) {
		_, addrs := listen(t, 1, apart)
		b, err := addrs[0].MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		b[0] = theirs
		err = new(Address).UnmarshalBinary(append(b, "and more"...))
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), fmt.Sprintf("version %d", theirs)) {
			t.Error(err)
		}
	})
}

// Somebody else who answers at a peer's address is noticed by the dialler.
func TestImpostor(t *testing.T) {
	checkFDs(t)
	listeners, addrs := listen(t, 2, apart)
	real := addrs[0]
	addrs[0].PID = 1 // exists, and is not this process
	_, err := listeners[1].Connect(within(t, patience), 1, addrs, nil)
	if p, ok := errors.AsType[*PeerError](err); !ok || p.Peer != 0 || !strings.Contains(err.Error(), "in the place of") {
		t.Error(err)
	}
	if err := listeners[0].Close(); err != nil {
		t.Fatal(err)
	}

	// In the right process, with the wrong secret.
	socket, err := net.ListenUnix(network, real.socketAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	listeners, again := listen(t, 1, func(int) int { return 7 })
	real.Process = random()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := socket.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		if _, err := c.Read(make([]byte, maxFrame)); err != nil {
			t.Error(err)
		}
		g := greeting{from: 0, to: 1, token: random(), own: random()}
		if _, err := c.Write(frame{kind: kindWelcome, payload: g.encode()}.append(nil)); err != nil {
			t.Error(err)
		}
	}()
	_, err = listeners[0].Connect(within(t, patience), 1, []Address{real, again[0]}, nil)
	blames(t, err, 0, ErrMalformed)
	<-done
}

// A peer that breaks the rules after it was let in is cut off, and reported with the reason.
func TestMisbehavingPeers(t *testing.T) {
	checkFDs(t)
	offer := regionOffer{size: 4096}.encode()
	for name, c := range map[string]struct {
		packet []byte
		fds    []int
		want   string
	}{
		"garbage": {[]byte("what?"), nil, "frame of 5 bytes"},
		"empty rights": {
			frame{kind: kindRegion, id: 1, payload: offer}.append(nil), nil,
			"region frame with 0 descriptors",
		},
		"unexpected rights": {frame{kind: kindMessage}.append(nil), []int{0}, "message frame with 1 descriptors"},
		"many rights": {
			frame{kind: kindDescriptor}.append(nil),
			[]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
			"descriptor frame with",
		},
		"two rights":  {frame{kind: kindDescriptor}.append(nil), []int{0, 0}, "descriptor frame with 2"},
		"hello again": {frame{kind: kindHello, payload: greeting{}.encode()}.append(nil), nil, "unexpected hello"},
		"too long":    {make([]byte, maxFrame+2), nil, "frame over"},
		"impossible region": {
			frame{kind: kindRegion, payload: make([]byte, regionOfferSize)}.append(nil),
			[]int{0},
			"region offer",
		},
		"garbage with rights":  {[]byte("what?"), []int{0}, "frame of 5 bytes"},
		"too long with rights": {make([]byte, maxFrame+2), []int{0}, "frame over"},
	} {
		t.Run(name, func(t *testing.T) {
			checkFDs(t)
			ranks := mesh(t, 2, apart)
			var rights []byte
			if c.fds != nil {
				rights = unix.UnixRights(c.fds...)
			}
			if _, _, err := ranks[0].peers[1].conn.socket.WriteMsgUnix(c.packet, rights, nil); err != nil {
				t.Fatal(err)
			}
			e := ranks[1].next(t)
			if e.Kind != Died || e.Peer != 0 || !errors.Is(e.Err, ErrMalformed) || !errors.Is(e.Err, ErrDied) ||
				!strings.Contains(e.Err.Error(), c.want) {
				t.Errorf("%v: %v", e.Kind, e.Err)
			}
			if e := ranks[0].next(t); e.Kind != Died {
				t.Errorf("%v: %v", e.Kind, e.Err)
			}
		})
	}
	t.Run("too far ahead", func(t *testing.T) {
		checkFDs(t)
		ranks := mesh(t, 2, apart)
		own := create(t, 4096, Options{})
		defer release(t, own)
		for id := range uint64(maxOffers + 1) {
			f := frame{kind: kindRegion, id: id, payload: offer}
			if err := ranks[0].peers[1].conn.write(within(t, patience), f, own.FD()); err != nil {
				t.Fatal(err)
			}
		}
		if e := ranks[1].next(t); e.Kind != Died || !errors.Is(e.Err, ErrMismatch) {
			t.Errorf("%v: %v", e.Kind, e.Err)
		}
	})
	t.Run("twice", func(t *testing.T) {
		checkFDs(t)
		ranks := mesh(t, 2, apart)
		for range 2 {
			if err := ranks[0].peers[1].conn.write(within(t, patience), frame{kind: kindDescriptor, id: 5}, 0); err != nil {
				t.Fatal(err)
			}
		}
		if e := ranks[1].next(t); e.Kind != Died || !strings.Contains(e.Err.Error(), "offered twice") {
			t.Errorf("%v: %v", e.Kind, e.Err)
		}
	})
}
