package bootstrap

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// testStore is a TCPStore server: a map behind the wire protocol, as much of it as clients need for
// rendezvous.
type testStore struct {
	mu      sync.Mutex
	values  map[string][]byte
	changed chan struct{}
	conns   map[net.Conn]struct{}
	done    chan struct{}
	work    sync.WaitGroup
}

// startStore runs a store until the test ends and returns its address.
func startStore(t testing.TB) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &testStore{
		values: make(map[string][]byte), changed: make(chan struct{}),
		conns: make(map[net.Conn]struct{}), done: make(chan struct{}),
	}
	s.work.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[conn] = struct{}{}
			s.mu.Unlock()
			s.work.Go(func() {
				s.serve(conn)
				conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.mu.Lock()
		for conn := range s.conns {
			conn.Close()
		}
		s.mu.Unlock()
		close(s.done)
		s.work.Wait()
	})
	return ln.Addr().String()
}

// serve answers one client until it goes, or says something else than this protocol.
func (s *testStore) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	u64 := func() uint64 {
		var b [8]byte
		io.ReadFull(r, b[:])
		return ne.Uint64(b[:])
	}
	str := func() []byte {
		n := u64()
		if n > 1<<20 {
			return nil
		}
		b := make([]byte, n)
		io.ReadFull(r, b)
		return b
	}
	if op, err := r.ReadByte(); err != nil || op != storeValidate {
		return
	}
	var magic [4]byte
	if io.ReadFull(r, magic[:]); ne.Uint32(magic[:]) != storeMagic {
		return
	}
	for {
		op, err := r.ReadByte()
		if err != nil {
			return
		}
		switch op {
		case storePing:
			var nonce [4]byte
			io.ReadFull(r, nonce[:])
			conn.Write(nonce[:])
		case storeSet:
			key, value := string(str()), str()
			s.put(key, value)
		case storeGet:
			key := str()
			s.mu.Lock()
			v := s.values[string(key)]
			s.mu.Unlock()
			conn.Write(appendBytes(nil, v))
		case storeAdd:
			key, n := string(str()), int64(u64())
			s.mu.Lock()
			old, _ := strconv.ParseInt(string(s.values[key]), 10, 64)
			s.mu.Unlock()
			s.put(key, strconv.AppendInt(nil, old+n, 10))
			conn.Write(ne.AppendUint64(nil, uint64(old+n)))
		case storeWait:
			for range u64() {
				if !s.wait(string(str())) {
					return
				}
			}
			conn.Write([]byte{storeStopWaiting})
		default:
			return
		}
	}
}

func (s *testStore) put(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait blocks until key is there or the store ends.
func (s *testStore) wait(key string) bool {
	for {
		s.mu.Lock()
		_, ok := s.values[key]
		changed := s.changed
		s.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-s.done:
			return false
		}
	}
}

func TestStoreClient(t *testing.T) { testStoreClient(t, startStore(t)) }

// testStoreClient holds for every TCPStore.
func testStoreClient(t *testing.T, address string) {
	ctx := testContext(t)
	c, err := dialStore(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for want := int64(1); want <= 3; want++ {
		if got, err := c.add(ctx, "counter", 1); got != want || err != nil {
			t.Fatalf("add: %d, %v", got, err)
		}
	}
	for _, value := range []string{"", "short", strings.Repeat("long", 5000)} {
		if err := c.set(ctx, "key", []byte(value)); err != nil {
			t.Fatal(err)
		}
		if got, err := c.get(ctx, "key"); string(got) != value || err != nil {
			t.Fatalf("get: %d bytes of %d, %v", len(got), len(value), err)
		}
	}
	// A get waits for the set, which comes over another connection.
	other, err := dialStore(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	got := make(chan string)
	go func() {
		v, err := other.get(ctx, "later")
		got <- fmt.Sprint(string(v), err)
	}()
	if err := c.set(ctx, "later", []byte("now")); err != nil {
		t.Fatal(err)
	}
	if v := <-got; v != "now<nil>" {
		t.Error(v)
	}
	// And it waits no longer than its context.
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := other.get(short, "never"); !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
}

func TestStoreJobs(t *testing.T) { testStoreJobs(t, startStore(t)) }

// testStoreJobs forms several jobs through one store, one after the other and side by side.
func testStoreJobs(t *testing.T, address string) {
	ctx := testContext(t)
	for job := range 3 {
		for _, prefix := range []string{"a/", "b/", ""} {
			ranks := mustDialAll(t, 3, func(rank int) (Bootstrap, error) {
				return DialTCPStore(ctx, StoreConfig{Rank: rank, Size: 3, Address: address, Prefix: prefix})
			})
			for r, err := range onAll(ranks, func(b Bootstrap) error { return b.Barrier(ctx) }) {
				if err != nil {
					t.Errorf("job %d under %q, rank %d: %v", job, prefix, r, err)
				}
			}
		}
	}
}

func TestStoreFailures(t *testing.T) {
	store := startStore(t)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := DialTCPStore(short, StoreConfig{Rank: 1, Size: 2, Address: freeAddress(t)}); !errors.Is(err, ErrTimeout) {
		t.Errorf("no store: %v", err)
	}

	// Two processes are rank 1: the first to come is taken, the other is told.
	duplicate := func(ctx context.Context, rank int) (Bootstrap, error) {
		return DialTCPStore(ctx, StoreConfig{Rank: rank, Size: 2, Address: store, Prefix: "dup/"})
	}
	ranks := mustDialAll(t, 2, func(rank int) (Bootstrap, error) { return duplicate(testContext(t), rank) })
	defer closeAll(ranks)
	short, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := duplicate(short, 1)
	wantPeer(t, err, 0, ErrTimeout)
	if !errors.Is(err, ErrDuplicateRank) {
		t.Error(err)
	}

	// Ranks that bring different secrets.
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	_, errs := dialAll(2, func(rank int) (Bootstrap, error) {
		return DialTCPStore(ctx, StoreConfig{
			Rank: rank, Size: 2, Address: store, Prefix: "secret/",
			Secret: []byte{byte(rank)},
		})
	})
	wantPeer(t, errs[1], 0, ErrSecret)
	wantPeer(t, errs[0], 1, ErrTimeout)

	// A store that holds something else under our name.
	c, err := dialStore(testContext(t), store)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.set(testContext(t), "alien/weft/id/1", []byte("not an id")); err != nil {
		t.Fatal(err)
	}
	if _, err := DialTCPStore(testContext(t),
		StoreConfig{Rank: 1, Size: 2, Address: store, Prefix: "alien/"}); err == nil {
		t.Error("joined an id that is none")
	}
}

// TestNoStore has other programs answer in a store's place.
func TestNoStore(t *testing.T) {
	for _, words := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "\x00\x00\x00\x00"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, words)
			io.Copy(io.Discard, conn)
			conn.Close()
		}()
		if _, err := dialStore(testContext(t), ln.Addr().String()); !errors.Is(err, ErrProtocol) {
			t.Errorf("%q: %v", words, err)
		}
		ln.Close()
		<-served
	}
}

// FuzzStoreReply feeds the parsers of what a store answers.
func FuzzStoreReply(f *testing.F) {
	f.Add(appendBytes(nil, []byte("value")))
	f.Add([]byte{storeStopWaiting})
	f.Add(bytes.Repeat([]byte{0xff}, 8))
	f.Add(ne.AppendUint64(nil, maxStoreValue+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := func() *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }
		if v, err := readStoreValue(r()); err == nil &&
			(len(v) > maxStoreValue || !bytes.Equal(appendBytes(nil, v), b[:8+len(v)])) {
			t.Fatalf("%d bytes from %d", len(v), len(b))
		}
		if n, err := readStoreInt(r()); err == nil && !bytes.Equal(ne.AppendUint64(nil, uint64(n)), b[:8]) {
			t.Fatal(n)
		}
		if err := readStoreWake(r()); err == nil && b[0] != storeStopWaiting {
			t.Fatal("woken by", b[0])
		}
	})
}
