package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestJoinFailures has one rank that does not fit. Every rank must get an error that says so.
func TestJoinFailures(t *testing.T) {
	secret := []byte("s3cret")
	tests := []struct {
		name   string
		size   int
		change func(rank int, c *TCPConfig)
		blame  int
		reason error
	}{
		{"duplicate rank", 4, func(rank int, c *TCPConfig) {
			if rank == 3 {
				c.Rank = 2
			}
		}, 2, ErrDuplicateRank},
		{"larger job", 4, func(rank int, c *TCPConfig) {
			if rank == 3 {
				c.Size = 5
			}
		}, 3, ErrSizeMismatch},
		{"smaller job", 4, func(rank int, c *TCPConfig) {
			if rank == 1 {
				c.Size = 2
			}
		}, 1, ErrSizeMismatch},
		{"rank 0 in a smaller job", 3, func(rank int, c *TCPConfig) {
			if rank == 0 {
				c.Size = 2
			}
		}, -1, ErrSizeMismatch},
		{"rank beyond rank 0's job", 3, func(rank int, c *TCPConfig) {
			if rank == 2 {
				c.Rank, c.Size = 7, 8
			}
		}, 7, ErrSizeMismatch},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, addr := testContext(t), freeAddress(t)
			_, errs := dialAll(test.size, func(rank int) (Bootstrap, error) {
				c := TCPConfig{Rank: rank, Size: test.size, Address: addr, Secret: secret}
				test.change(rank, &c)
				return DialTCP(ctx, c)
			})
			for r, err := range errs {
				if test.blame < 0 {
					if !errors.Is(err, test.reason) {
						t.Errorf("process %d: %v, want %v", r, err, test.reason)
					}
					continue
				}
				wantPeer(t, err, test.blame, test.reason)
			}
		})
	}
}

// TestWithdraw has a rank meet an error of its own when rank 0 has let it in: the others are told that, and not
// that it died.
func TestWithdraw(t *testing.T) {
	const victim = 1
	addr := freeAddress(t)
	_, errs := dialAll(3, func(rank int) (Bootstrap, error) {
		c := TCPConfig{Rank: rank, Size: 3, Address: addr}
		if rank != victim {
			return DialTCP(testContext(t), c)
		}
		r := &tcpRank{mesh: newMesh(rank, c.Size), id: identity{rank: rank, size: c.Size}, conns: make(map[net.Conn]struct{})}
		r.life, r.end = context.WithCancel(context.Background())
		r.mesh.stop = r.stop
		conn, job, err := r.dial(testContext(t), roleHub, 0, []string{addr})
		if err != nil {
			return nil, err
		}
		r.id.job = job
		err = r.withdraw(conn, &net.OpError{Op: "listen", Err: syscall.EMFILE})
		return nil, errors.Join(err, r.Close())
	})
	if !errors.Is(errs[victim], syscall.EMFILE) {
		t.Errorf("rank %d: %v", victim, errs[victim])
	}
	for _, err := range []error{errs[0], errs[2]} {
		wantPeer(t, err, victim, ErrAborted)
		if err == nil || !strings.Contains(err.Error(), "open files") {
			t.Errorf("%v does not say why", err)
		}
	}
}

// TestWrongSecret: the stranger is refused at once. The job does not believe a word it says, so it
// only misses the rank, and says why it might.
func TestWrongSecret(t *testing.T) {
	for _, secrets := range [][2]string{{"right", "wrong"}, {"right", ""}, {"", "wrong"}} {
		t.Run(fmt.Sprintf("%q against %q", secrets[0], secrets[1]), func(t *testing.T) {
			t.Parallel()
			addr := freeAddress(t)
			refused := make(chan struct{})
			_, errs := dialAll(3, func(rank int) (Bootstrap, error) {
				ctx, cancel := context.WithCancel(testContext(t))
				c := TCPConfig{Rank: rank, Size: 3, Address: addr, Secret: []byte(secrets[0])}
				if rank == 2 {
					defer close(refused)
					c.Secret = []byte(secrets[1])
				} else {
					// The others' time is up once the stranger has been refused.
					deadline, stop := context.WithDeadlineCause(ctx, time.Now().Add(2*time.Second), nil)
					defer stop()
					ctx = deadline
				}
				defer cancel()
				return DialTCP(ctx, c)
			})
			<-refused
			wantPeer(t, errs[2], 0, ErrSecret)
			for _, err := range errs[:2] {
				wantPeer(t, err, 2, ErrTimeout)
				if err == nil || !strings.Contains(err.Error(), ErrSecret.Error()) {
					t.Errorf("%v does not mention the refused rank", err)
				}
			}
		})
	}
}

func TestNoSecretStaysOnThisHost(t *testing.T) {
	for rank := range 2 {
		_, err := DialTCP(testContext(t), TCPConfig{Rank: rank, Size: 2, Address: "192.0.2.1:4000"})
		if !errors.Is(err, ErrNotLoopback) || !strings.Contains(err.Error(), "WEFT_SECRET") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	// A peer that comes from elsewhere is refused before it has said anything.
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	id := identity{rank: 0, size: 2}
	if _, _, err := id.examine(remoteConn{near}); !errors.Is(err, ErrNotLoopback) {
		t.Errorf("examine: %v", err)
	}
	if _, err := id.introduce(remoteConn{near}, roleHub, 1); !errors.Is(err, ErrNotLoopback) {
		t.Errorf("introduce: %v", err)
	}
}

type remoteConn struct{ net.Conn }

func (remoteConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4000} }

// TestStrangers has port scanners and other programs at rank 0's port, before and while ranks join.
func TestStrangers(t *testing.T) {
	addr, ctx := freeAddress(t), testContext(t)
	size := 4
	results := make(chan error, size)
	ranks := make([]Bootstrap, size)
	start := func(rank int) {
		var err error
		ranks[rank], err = DialTCP(ctx, TCPConfig{Rank: rank, Size: size, Address: addr, Secret: []byte("s")})
		results <- err
	}
	go start(0)

	frame := appendFrame(nil, hello{role: roleHub, rank: 1, size: 4})
	oversized := bytes.Clone(frame)
	le.PutUint32(oversized[8:], 1<<31)
	newer := bytes.Clone(frame)
	newer[4]++
	var strangers []net.Conn
	for _, words := range [][]byte{
		nil, []byte("GET / HTTP/1.1\r\nHost: weft\r\n\r\n"), bytes.Repeat([]byte{0}, 4096), []byte("WEFT"), oversized, newer,
		appendFrame(nil, proof{}), appendFrame(nil, bye{}), frame,
		append(frame[:len(frame):len(frame)], appendFrame(nil, proof{})...),
	} {
		for range 5 {
			strangers = append(strangers, connect(t, ctx, addr, words))
		}
	}
	for r := 1; r < size; r++ {
		go start(r)
	}
	for range size {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	for _, conn := range strangers {
		conn.Close()
	}
	closeAll(ranks)
}

// connect dials until somebody answers, and says words.
func connect(t testing.TB, ctx context.Context, addr string, words []byte) net.Conn {
	t.Helper()
	var pause backoff
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Write(words)
			return conn
		}
		if pause.wait(ctx) != nil {
			t.Fatal(err)
		}
	}
}

// TestMissingRank: at the deadline every rank names the one that never came.
func TestMissingRank(t *testing.T) {
	addr := freeAddress(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, errs := dialAll(3, func(rank int) (Bootstrap, error) {
		if rank == 2 {
			return nil, nil
		}
		return DialTCP(ctx, TCPConfig{Rank: rank, Size: 3, Address: addr})
	})
	for _, err := range errs[:2] {
		wantPeer(t, err, 2, ErrTimeout)
	}
}

func TestMissingRankZero(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := DialTCP(ctx, TCPConfig{Rank: 1, Size: 2, Address: freeAddress(t)})
	wantPeer(t, err, 0, ErrTimeout)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestNotWeft(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		io.WriteString(conn, "220 mail.example ESMTP\r\n")
		io.Copy(io.Discard, conn)
		conn.Close()
	}()
	_, err = DialTCP(testContext(t), TCPConfig{Rank: 1, Size: 2, Address: ln.Addr().String()})
	wantPeer(t, err, 0, ErrProtocol)
	<-served
}

// TestLateDuplicate: a job that is complete is not disturbed by a process that comes too late,
// which is told so.
func TestLateDuplicate(t *testing.T) {
	addr := freeAddress(t)
	config := func(rank int) TCPConfig { return TCPConfig{Rank: rank, Size: 2, Address: addr} }
	ranks := mustDialAll(t, 2, func(rank int) (Bootstrap, error) { return DialTCP(testContext(t), config(rank)) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := DialTCP(ctx, config(1))
	wantPeer(t, err, 0, ErrDuplicateRank)
	for r, err := range onAll(ranks, func(b Bootstrap) error { return b.Barrier(testContext(t)) }) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestJobsAtOneAddress has the same ranks form several jobs at one address, with the earlier ones
// alive.
func TestJobsAtOneAddress(t *testing.T) {
	addr := freeAddress(t)
	var all []Bootstrap
	defer func() { closeAll(all) }()
	for job := range 4 {
		ranks := mustDialAll(t, 3, func(rank int) (Bootstrap, error) {
			return DialTCP(testContext(t), TCPConfig{Rank: rank, Size: 3, Address: addr, Secret: []byte("s")})
		})
		all = append(all, ranks...)
		if job == 2 {
			closeAll(all[:3])
		}
	}
	for i, err := range onAll(all[3:], func(b Bootstrap) error { return b.Barrier(testContext(t)) }) {
		if err != nil {
			t.Errorf("job %d: %v", 1+i/3, err)
		}
	}
}

func TestTwoRankZeros(t *testing.T) {
	addr := freeAddress(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, errs := dialAll(2, func(int) (Bootstrap, error) { return DialTCP(ctx, TCPConfig{Rank: 0, Size: 2, Address: addr}) })
	if !errors.Is(errs[0], ErrDuplicateRank) && !errors.Is(errs[1], ErrDuplicateRank) {
		t.Error(errs)
	}

	ln, err := net.Listen("tcp", addr) // another process's
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := DialTCP(testContext(t), TCPConfig{Rank: 0, Size: 2, Address: addr}); !errors.Is(err, ErrDuplicateRank) {
		t.Error(err)
	}
}

// impostor joins as a rank by hand, so that the test can misbehave on an established link.
func impostor(t *testing.T, addr string, rank, size int) net.Conn {
	t.Helper()
	conn := connect(t, testContext(t), addr, nil)
	id := identity{rank: rank, size: size}
	if _, err := id.introduce(conn, roleHub, 0); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestMisbehaviour: a rank that breaks the protocol after it has proved itself is named by all.
func TestMisbehaviour(t *testing.T) {
	tests := map[string][]byte{
		"garbage":         []byte("this is no frame at all"),
		"oversized frame": le.AppendUint32([]byte("WEFT\x01\x05\x00\x00"), maxPayload+1),
		"unknown kind":    []byte("WEFT\x01\x63\x00\x00\x00\x00\x00\x00"),
		"cut message":     le.AppendUint32([]byte("WEFT\x01\x06\x00\x00"), 0),
		"handshake again": appendFrame(nil, hello{}),
		"not rank 0":      appendFrame(nil, gathered{seq: 0, blocks: [][]byte{nil}}),
		"wrong turn":      appendFrame(nil, share{seq: 9, op: opBarrier}),
		"fault of nobody": appendFrame(nil, fault{rank: 99, reason: reasonDied}),
		"fault of none":   appendFrame(nil, fault{rank: 0, reason: accepted}),
	}
	for name, words := range tests {
		t.Run(name, func(t *testing.T) {
			addr, ctx := freeAddress(t), testContext(t)
			conns := make(chan net.Conn, 1)
			ranks, errs := dialAll(3, func(rank int) (Bootstrap, error) {
				if rank == 2 {
					conn := impostor(t, addr, 2, 3)
					conn.Write(appendFrame(nil, share{seq: 0, op: opJoin, bytes: []byte("127.0.0.1:1")}))
					conns <- conn
					return nil, nil
				}
				return DialTCP(ctx, TCPConfig{Rank: rank, Size: 3, Address: addr})
			})
			conn := <-conns
			defer conn.Close()
			ranks = ranks[:2]
			defer closeAll(ranks)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			conn.Write(words)
			for _, err := range onAll(ranks, func(b Bootstrap) error { return b.Barrier(ctx) }) {
				wantPeer(t, err, 2, ErrProtocol)
			}
		})
	}
}

// TestDeathDuringJoin: a rank that goes away between its arrival and the end of the join is named.
func TestDeathDuringJoin(t *testing.T) {
	addr, ctx := freeAddress(t), testContext(t)
	_, errs := dialAll(4, func(rank int) (Bootstrap, error) {
		if rank == 3 {
			conn := impostor(t, addr, 3, 4)
			return nil, conn.Close()
		}
		return DialTCP(ctx, TCPConfig{Rank: rank, Size: 4, Address: addr})
	})
	for _, err := range errs[:3] {
		wantPeer(t, err, 3, ErrDied)
	}
}

// TestDeathWhileOthersAreMissing: a rank has joined as far as it can and dies. Nobody waits for the
// missing one any longer.
func TestDeathWhileOthersAreMissing(t *testing.T) {
	addr, ctx := freeAddress(t), testContext(t)
	_, errs := dialAll(4, func(rank int) (Bootstrap, error) {
		switch rank {
		case 2:
			return nil, nil
		case 3:
			conn := impostor(t, addr, 3, 4)
			conn.Write(appendFrame(nil, share{seq: 0, op: opJoin, bytes: []byte("127.0.0.1:1")}))
			return nil, conn.Close()
		}
		return DialTCP(ctx, TCPConfig{Rank: rank, Size: 4, Address: addr})
	})
	for _, err := range errs[:2] {
		wantPeer(t, err, 3, ErrDied)
	}
}

// TestGivenUpJoin: a rank gives its join up after rank 0 has heard from it. The others come
// together without it, and learn of it when they need it.
func TestGivenUpJoin(t *testing.T) {
	addr, ctx := freeAddress(t), testContext(t)
	ranks := mustDialAll(t, 3, func(rank int) (Bootstrap, error) {
		if rank == 1 {
			return nil, nil
		}
		if rank == 2 {
			conn := impostor(t, addr, 1, 3)
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(testTimeout))
			for _, m := range []message{
				share{seq: 0, op: opJoin, bytes: []byte("127.0.0.1:1")}, fault{rank: 1, reason: reasonAborted}, bye{},
			} {
				conn.Write(appendFrame(nil, m))
			}
			conn.(*net.TCPConn).CloseWrite()
			if _, err := io.Copy(io.Discard, conn); err != nil { // until rank 0 has taken note
				return nil, err
			}
		}
		return DialTCP(ctx, TCPConfig{Rank: rank, Size: 3, Address: addr})
	})
	for _, err := range onAll([]Bootstrap{ranks[0], ranks[2]}, func(b Bootstrap) error { return b.Barrier(ctx) }) {
		wantPeer(t, err, 1, ErrAborted)
	}
}

// otherVersion is a connection of a build whose version of the protocol is another one.
type otherVersion struct {
	net.Conn
	version byte
}

func (c otherVersion) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	b[len(frameMagic)] = c.version
	return c.Conn.Write(b)
}

func (c otherVersion) Read(b []byte) (int, error) {
	n, err := io.ReadFull(c.Conn, b)
	if string(b[:min(n, len(frameMagic))]) == frameMagic {
		if b[len(frameMagic)] != c.version {
			return 0, fmt.Errorf("%w: spoken to in version %d", ErrProtocol, b[len(frameMagic)])
		}
		b[len(frameMagic)] = frameVersion
	}
	return n, err
}

// wantVersions checks that err says which two versions do not go together.
func wantVersions(t *testing.T, err error, rank int, theirs byte) {
	t.Helper()
	wantPeer(t, err, rank, ErrMismatch)
	for _, version := range []byte{frameVersion, theirs} {
		if !strings.Contains(fmt.Sprint(err), fmt.Sprintf("version %d", version)) {
			t.Errorf("no version %d: %v", version, err)
		}
	}
}

// TestOtherVersionDials: a rank of another version is named at once by every rank that is there,
// the one itself included, in spite of another that is still to come.
func TestOtherVersionDials(t *testing.T) {
	const theirs = frameVersion + 8
	for _, secret := range []string{"", "s3cret"} {
		addr, ctx := freeAddress(t), testContext(t)
		_, errs := dialAll(4, func(rank int) (Bootstrap, error) {
			switch rank {
			case 2:
				return nil, nil
			case 3:
				conn := connect(t, ctx, addr, nil)
				defer conn.Close()
				id := identity{rank: 3, size: 4, secret: []byte(secret)}
				_, err := id.introduce(otherVersion{conn, theirs}, roleHub, 0)
				return nil, err
			}
			return DialTCP(ctx, TCPConfig{Rank: rank, Size: 4, Address: addr, Secret: []byte(secret)})
		})
		for _, err := range errs[:2] {
			wantVersions(t, err, 3, theirs)
		}
		if no, ok := errors.AsType[*refusal](errs[3]); !ok || no.rank != 3 ||
			!strings.Contains(no.text, "version 9") || !errors.Is(no, ErrMismatch) {
			t.Errorf("it hears %v", errs[3])
		}
	}
}

// TestOtherVersionListens: where rank 0 is of another version, ranks that dial say so at once:
// because it does, or because of the first bytes that it says, whatever follows them. What only
// closes the connection may be of another version, too, but that is known at the deadline.
func TestOtherVersionListens(t *testing.T) {
	const theirs = frameVersion + 8
	id := identity{rank: 0, size: 2}
	for name, serve := range map[string]func(conn net.Conn){
		"refuses": func(conn net.Conn) {
			ask, seal, err := id.examine(conn)
			if err != nil {
				t.Error(err)
				return
			}
			no := verdict{reason: reasonMismatch, rank: 0, text: fmt.Sprintf("version %d and version %d", ask.version, theirs)}
			conn.Write(appendFrame(nil, seal(no)))
		},
		"answers in its own way": func(conn net.Conn) {
			io.ReadFull(conn, make([]byte, headerSize))
			conn.Write(append([]byte(frameMagic), theirs, 77, 0, 0, 5, 0, 0, 0, 1, 2, 3, 4, 5))
			io.Copy(io.Discard, conn)
		},
		"closes": func(conn net.Conn) { io.ReadFull(conn, make([]byte, headerSize)) },
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var served sync.WaitGroup
			served.Go(func() {
				for {
					conn, err := ln.Accept()
					if err != nil {
						return
					}
					serve(conn)
					conn.Close()
				}
			})
			defer served.Wait()
			defer ln.Close()
			limit := testTimeout
			if name == "closes" {
				limit = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err = DialTCP(ctx, TCPConfig{Rank: 1, Size: 2, Address: ln.Addr().String()})
			if name != "closes" {
				wantVersions(t, err, 0, theirs)
				return
			}
			wantPeer(t, err, 0, ErrTimeout)
			if !strings.Contains(fmt.Sprint(err), fmt.Sprintf("does not know version %d", frameVersion)) {
				t.Error(err)
			}
		})
	}
}

// TestOtherVersionAnswered: whatever a dialler of another version says, it is answered by a frame
// of this one.
func TestOtherVersionAnswered(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go func() {
		far.Write(append([]byte(frameMagic), frameVersion+8, 77, 0, 0, 0xff, 0xff, 0xff, 0xff))
	}()
	answer := make(chan []byte, 1)
	go func() {
		b := make([]byte, headerSize)
		io.ReadFull(far, b)
		answer <- b
		io.Copy(io.Discard, far)
	}()
	_, _, err := identity{rank: 0, size: 2, secret: []byte("s")}.examine(near)
	if _, ok := errors.AsType[*versionError](err); !ok {
		t.Error(err)
	}
	if b := <-answer; string(b[:4]) != frameMagic || b[4] != frameVersion {
		t.Errorf("answered by %q", b)
	}
}

// TestNobodyListens: a rank's address, at which it was reached, refuses connections. That is its
// end, at once, whether or not rank 0 is there to say so.
func TestNobodyListens(t *testing.T) {
	for _, without := range []string{"nobody", "rank 0"} {
		t.Run("without "+without, func(t *testing.T) {
			ranks := implementations[1].make(t, 3)
			if without == "rank 0" {
				ranks[0].Close()
			}
			ranks[2].(*tcpRank).listen.ln.Close()
			ctx, cancel := context.WithTimeout(t.Context(), handshakeTimeout/2)
			defer cancel()
			wantPeer(t, ranks[1].Send(ctx, 2, nil), 2, ErrDied)
			_, err := ranks[1].Recv(ctx, 2)
			wantPeer(t, err, 2, ErrDied)
		})
	}
}

// TestSilence: where nothing answers at a rank's address, only rank 0 can tell whether the rank
// lives. Without rank 0 it counts as dead; but not if its host takes connections, as it does for a
// stopped process.
func TestSilence(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, test := range []struct {
		addr    string
		orphan  bool
		timeout bool
	}{
		{freeAddress(t), false, true},
		{freeAddress(t), true, false},
		{ln.Addr().String(), true, true},
	} {
		ranks := implementations[1].make(t, 3)
		r := ranks[1].(*tcpRank)
		// As the role of a joining rank, which does not take a refusal for an answer, the refusing
		// address stands for a silent one.
		open := func(int) (link, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, _, err := r.dial(ctx, roleHub, 2, []string{test.addr})
			return nil, err.(*PeerError).Err
		}
		r.mu.Lock()
		r.open = open
		r.mu.Unlock()
		if test.orphan {
			ranks[0].Close()
			if err := r.wait(testContext(t), func() (bool, error) { return r.orphaned(), nil }); err != nil {
				t.Fatal(err)
			}
		}
		want := ErrDied
		if test.timeout {
			want = ErrTimeout
		}
		wantPeer(t, r.Send(testContext(t), 2, nil), 2, want)
		closeAll(ranks)
	}
}

// TestCutLink resets the connection between two ranks. They can't work together any more, and
// everyone hears of it.
func TestCutLink(t *testing.T) {
	addr, ctx := freeAddress(t), testContext(t)
	ranks := mustDialAll(t, 3, func(rank int) (Bootstrap, error) {
		return DialTCP(ctx, TCPConfig{Rank: rank, Size: 3, Address: addr})
	})
	if err := ranks[2].Send(ctx, 1, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ranks[1].Recv(ctx, 2); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error, 2)
	go func() { _, err := ranks[1].Recv(ctx, 2); blocked <- err }()
	go func() { blocked <- ranks[0].Barrier(ctx) }()
	m := ranks[2].(*tcpRank).mesh
	m.mu.Lock()
	conn := m.out[1].(*tcpLink).conn
	m.mu.Unlock()
	conn.SetLinger(0) // a reset, as from a host that was restarted
	conn.Close()
	for range 2 {
		err := <-blocked
		pe, ok := errors.AsType[*PeerError](err)
		if !ok || pe.Rank == 0 || !errors.Is(err, ErrDied) {
			t.Errorf("got %v", err)
		}
	}
}

func TestInterface(t *testing.T) {
	lo, err := net.InterfaceByIndex(1)
	if err != nil {
		t.Skip("no interface 1:", err)
	}
	for _, name := range []string{lo.Name, "127.0.0.1"} {
		addr := freeAddress(t)
		ranks := mustDialAll(t, 3, func(rank int) (Bootstrap, error) {
			return DialTCP(testContext(t), TCPConfig{Rank: rank, Size: 3, Address: addr, Secret: []byte("s"), Interface: name})
		})
		for r, addrs := range ranks[0].(*tcpRank).addrs[1:] {
			if len(addrs) != 1 || !strings.HasPrefix(addrs[0], "127.0.0.1:") {
				t.Errorf("rank %d publishes %v", r+1, addrs)
			}
		}
		closeAll(ranks)
	}
	for _, name := range []string{"nosuch0", "192.0.2.7"} {
		_, err := DialTCP(testContext(t), TCPConfig{
			Rank: 0, Size: 2, Address: freeAddress(t),
			Secret: []byte("s"), Interface: name,
		})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("interface %s: %v", name, err)
		}
	}
}

// TestInterfaceElsewhere: rank 0 would listen where nobody dials. Every rank says so, and none
// waits.
func TestInterfaceElsewhere(t *testing.T) {
	if ln, err := net.Listen("tcp", "[::1]:0"); err == nil {
		ln.Close()
	} else {
		t.Skip("no IPv6 here:", err)
	}
	for _, test := range []struct{ address, iface string }{
		{freeAddress(t), "::1"}, {freeAddress(t), "127.0.0.2"}, {"[::1]:4711", "127.0.0.1"}, {"localhost:4711", "127.0.0.2"},
	} {
		for rank := range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := DialTCP(ctx, TCPConfig{
				Rank: rank, Size: 2, Address: test.address, Secret: []byte("s"),
				Interface: test.iface,
			})
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), test.iface) ||
				!strings.Contains(err.Error(), "WEFT_INTERFACE") {
				t.Errorf("rank %d at %s with interface %s: %v", rank, test.address, test.iface, err)
			}
			cancel()
		}
	}
}

func TestMACs(t *testing.T) {
	ask := hello{role: rolePair, rank: 1, peer: 2, size: 4, job: jobID{1}, nonce: nonce{2}}
	answer := challenge{rank: 2, size: 4, job: jobID{1}, nonce: nonce{3}}
	base := transcript(answer.appendTo(ask.appendTo(nil))).mac([]byte("k"), labelDial, nil)
	changed := []func(){
		func() { ask.role = roleHub }, func() { ask.rank = 3 }, func() { ask.peer = 3 }, func() { ask.size = 5 },
		func() { ask.job[7] = 1 }, func() { ask.nonce[31] = 1 },
		func() { answer.rank = 1 }, func() { answer.size = 9 }, func() { answer.job[0] = 9 }, func() { answer.nonce[0] = 9 },
	}
	for i, change := range changed {
		a, c := ask, answer
		change()
		if transcript(answer.appendTo(ask.appendTo(nil))).mac([]byte("k"), labelDial, nil) == base {
			t.Errorf("change %d is not covered", i)
		}
		ask, answer = a, c
	}
	tr := transcript(answer.appendTo(ask.appendTo(nil)))
	if tr.mac([]byte("k"), labelAccept, nil) == base || tr.mac([]byte("l"), labelDial, nil) == base {
		t.Error("direction or secret is not covered")
	}
	v := verdict{reason: accepted, rank: 2}.sealed(tr, []byte("k"))
	if (verdict{reason: reasonSize, rank: 2}.sealed(tr, []byte("k"))).mac == v.mac {
		t.Error("verdict is not covered")
	}
}
