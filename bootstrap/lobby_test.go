package bootstrap

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestLobby fills a lobby from two addresses. The oldest connection of the one with more goes each
// time, and no proven one.
func TestLobby(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	l := &lobby{room: 4, from: make(map[netip.Addr]*list.List)}
	enter := func(from string) *arrival {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Second}
		out, err := d.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Skip("no second address here:", err)
		}
		in, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { out.Close(); in.Close() })
		return l.enter(in.(*net.TCPConn))
	}
	many, few := "127.0.0.2", "127.0.0.3"
	proven := enter(many)
	if err := proven.leave(); err != nil {
		t.Fatal(err)
	}
	old := []*arrival{enter(few), enter(many), enter(many), enter(many)}
	fresh := enter(few)
	for i, cut := range []bool{false, true, false, false} {
		if got := errors.Is(old[i].leave(), errCrowded); got != cut {
			t.Errorf("connection %d: closed is %v", i, got)
		}
	}
	if err := fresh.leave(); err != nil || proven.leave() != nil || l.count != 0 || len(l.from) != 0 || l.makeRoom() {
		t.Errorf("%v; %d left from %d addresses", err, l.count, len(l.from))
	}
}
