package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// doors opens a door for each of two ranks that have met, and serves at both with keys.
func doors(t *testing.T, ranks []Bootstrap, keys [2]string, admit func(*Link)) [2]*Door {
	t.Helper()
	var open [2]*Door
	for r := range open {
		d, err := OpenDoor(ranks[r])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		d.Serve([]byte(keys[r]), admit)
		open[r] = d
	}
	return open
}

// linked are the ends of a link from rank 1 to rank 0. They are cut and the ranks closed when the test ends.
func linked(t *testing.T, ranks []Bootstrap) (near, far *Link) {
	t.Cleanup(func() { closeAll(ranks) })
	admitted := make(chan *Link, 1)
	open := doors(t, ranks, [2]string{"key", "key"}, func(l *Link) { admitted <- l })
	near, err := open[1].Dial(testContext(t), 0, open[0].Addresses())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(near.Cut)
	far = <-admitted
	t.Cleanup(far.Cut)
	return near, far
}

// TestDoor makes links between ranks of each kind of bootstrap, and carries messages both ways.
func TestDoor(t *testing.T) {
	for _, impl := range implementations[:2] {
		t.Run(impl.name, func(t *testing.T) {
			near, far := linked(t, impl.make(t, 2))
			if near.Peer() != 0 || far.Peer() != 1 {
				t.Errorf("peers %d and %d", near.Peer(), far.Peer())
			}
			m, enough := NewMessage([]byte("hello")), errors.New("enough")
			arrived, ended := make(chan []byte, 2), make(chan error, 2)
			for _, l := range []*Link{near, far} {
				l.Send(m)
				times := 0
				go func() {
					ended <- l.Receive(func(b []byte) error {
						if times++; times > 1 {
							return enough
						}
						arrived <- b
						return nil
					})
				}()
			}
			for range 2 {
				if b := <-arrived; !bytes.Equal(b, m.Bytes()) {
					t.Errorf("%q arrives", b)
				}
			}
			near.Send(m)
			if err := errors.Join(<-ended, <-ended); !errors.Is(err, enough) { // what fails ends the link for both
				t.Error(err)
			}
		})
	}
}

// TestUnread: the system tells that something waits to be received, while the peer itself receives nothing.
func TestUnread(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	near, far := linked(t, implementations[0].make(t, 2))
	if far.Unread() {
		t.Error("something waits that nobody has sent")
	}
	for range 20 {
		near.Send(NewMessage([]byte("hello")))
		for end := time.Now().Add(30 * time.Second); !far.Unread(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("what was sent does not wait")
			}
		}
	}
	near.Cut()
	if near.Unread() {
		t.Error("something waits behind a link that was cut")
	}
}

// TestMet: the address by which a rank meets others is that of the interface that it uses, and of loopback only where
// nobody else takes part.
func TestMet(t *testing.T) {
	for _, impl := range implementations[:3] {
		ranks := impl.make(t, 2)
		for r, b := range ranks {
			a := Met(b)
			if want := impl.name == "tcp without a secret"; a.IsValid() && (!want || !a.IsLoopback()) || !a.IsValid() && want {
				t.Errorf("%s: rank %d met others by %v", impl.name, r, a)
			}
		}
		closeAll(ranks)
	}
	addr := freeAddress(t)
	for _, b := range mustDialAll(t, 2, func(rank int) (Bootstrap, error) {
		return DialTCP(testContext(t), TCPConfig{
			Rank: rank, Size: 2, Address: addr, Secret: []byte("s3cret"), Interface: "127.0.0.1",
		})
	}) {
		if a := Met(b); !a.IsLoopback() {
			t.Errorf("rank %d, which was told to use loopback, met others by %v", b.Rank(), a)
		}
	}
	for _, a := range usable(net.InterfaceAddrs) {
		if a.IsLoopback() {
			continue
		}
		if got := Met(&tcpRank{bound: a}); got != a {
			t.Errorf("bound to %v: %v", a, got)
		}
	}
}

// TestDoorRefuses: a door lets in nobody who does not prove the key, comes from another rank than it says, or
// means another rank.
func TestDoorRefuses(t *testing.T) {
	ranks := implementations[0].make(t, 2)
	defer closeAll(ranks)
	open := doors(t, ranks, [2]string{"one", "other"}, func(l *Link) {
		t.Errorf("rank %d was let in", l.Peer())
		l.Cut()
	})
	if _, err := open[1].Dial(testContext(t), 0, open[0].Addresses()); !errors.Is(err, ErrSecret) {
		t.Errorf("with another key: %v", err)
	}
	same := doors(t, ranks, [2]string{"key", "key"}, func(l *Link) {
		t.Errorf("rank %d was let in", l.Peer())
		l.Cut()
	})
	if _, err := same[0].Dial(testContext(t), 1, same[0].Addresses()); err == nil {
		t.Error("a rank comes in at its own door as another")
	}
	conn, err := net.Dial("tcp", same[0].Addresses()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || isTimeout(err) {
		t.Errorf("a stranger reads %d bytes: %v", n, err)
	}
}

// TestDoorAbsent: where nothing listens any more the error says so.
func TestDoorAbsent(t *testing.T) {
	ranks := implementations[0].make(t, 2)
	defer closeAll(ranks)
	open := doors(t, ranks, [2]string{"key", "key"}, func(l *Link) { l.Cut() })
	at := open[0].Addresses()
	if open[1].Absent(testContext(t), at) {
		t.Error("a door that is there is absent")
	}
	if err := open[0].Close(); err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := open[1].Dial(testContext(t), 0, at[:1]); !errors.Is(err, ErrDied) {
			t.Errorf("dial: %v", err)
		}
	})
	both.Go(func() {
		if !open[1].Absent(testContext(t), at[:1]) {
			t.Error("a door that was closed is there")
		}
	})
	both.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if open[1].Absent(ctx, at[:1]) {
		t.Error("a look that was cancelled says that nothing is there")
	}
}

// TestInterfaceBeforeAddress takes addresses apart that name an interface.
func TestInterfaceBeforeAddress(t *testing.T) {
	for text, want := range map[string][2]string{
		"eth0:10.0.0.1:29500":   {"eth0", "10.0.0.1:29500"},
		"eth0:[fe80::1]:29500":  {"eth0", "[fe80::1]:29500"},
		"ib0:host-7:1":          {"ib0", "host-7:1"},
		"10.0.0.1:29500":        {},
		"[2001:db8::1]:29500":   {},
		"2001:db8::1":           {},
		"::1":                   {},
		"host":                  {},
		":10.0.0.1:29500":       {},
		"eth0::29500":           {},
		"fe80::1%eth0":          {},
		"[2001:db8::1]:1:29500": {},
	} {
		if name, address, _ := cutInterface(text); name != want[0] && want[0] != "" || address != want[1] && want[1] != "" {
			t.Errorf("%s: %q and %q", text, name, address)
		}
		if _, _, ok := cutInterface(text); ok != (want[0] != "") {
			t.Errorf("%s: %v", text, ok)
		}
	}
	if got := withPort("lo:127.0.0.1:29500", 1); got != "lo:127.0.0.1:29500" {
		t.Error(got)
	}
	at := "127.0.0.1:" + freeAddress(t)
	ranks := mustDialAll(t, 2, func(rank int) (Bootstrap, error) {
		return DialTCP(testContext(t), TCPConfig{Rank: rank, Size: 2, Address: at})
	})
	closeAll(ranks)
}
