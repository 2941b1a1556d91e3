package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// newPackets joins two ranks by packets of up to payload bytes, whose last round was round.
func newPackets(t testing.TB, p Policy, payload int, round uint32, apart bool) (ends [2]*Packets) {
	t.Helper()
	j := newJoint(t, p, apart)
	n := PacketBytes(payload)
	mine, theirs := twice(t, 2*n)
	if !apart {
		theirs = mine
	}
	for r, view := range [][]byte{mine, theirs} {
		var err error
		if ends[r], err = NewPackets(j.waiter[r], 1-r, view[r*n:][:n], view[(1-r)*n:][:n]); err != nil {
			t.Fatal(err)
		}
		ends[r].round = round
	}
	return ends
}

// both runs turn as both ranks.
func both(t interface{ Errorf(string, ...any) }, turn func(rank int) error) {
	var other sync.WaitGroup
	other.Go(func() {
		if err := turn(1); err != nil {
			t.Errorf("rank 1: %v", err)
		}
	})
	if err := turn(0); err != nil {
		t.Errorf("rank 0: %v", err)
	}
	other.Wait()
}

// message is what a rank sends in a round: no two words of any two messages are the same for long.
func message(b []byte, rank int, round uint32) {
	for i := range b {
		b[i] = byte((round*2654435761 + uint32(i/4*40503+rank*97)) >> (8 * uint(i%4)))
	}
}

func TestNewPackets_refuses(t *testing.T) {
	mem, _ := twice(t, 1024)
	w := &Waiter{}
	for name, b := range map[string][2][]byte{
		"nothing":           {nil, nil},
		"different sizes":   {mem[:32], mem[512:][:48]},
		"half a packet":     {mem[:24], mem[512:][:24]},
		"inbound is askew":  {mem[4:][:32], mem[512:][:32]},
		"outbound is askew": {mem[:32], mem[513:][:32]},
	} {
		if _, err := NewPackets(w, 1, b[0], b[1]); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for payload := range 100 {
		n := PacketBytes(payload)
		p, err := NewPackets(w, 1, mem[:n], mem[512:][:n])
		if err != nil || p.half < payload || p.half > payload+4 {
			t.Errorf("%d bytes for messages of %d: %v", n, payload, err)
		}
	}
}

func TestPacketsRefuse(t *testing.T) {
	ends := newPackets(t, Policy{}, 8, 0, true)
	p := ends[0]
	if p.Exchange(testContext(t), make([]byte, 9), make([]byte, 9)) == nil {
		t.Error("a message that is too long went through")
	}
	if p.Exchange(testContext(t), make([]byte, 3), make([]byte, 4)) == nil {
		t.Error("a message into a shorter buffer went through")
	}
	both(t, func(rank int) error { // neither was a round
		var b [8]byte
		return ends[rank].Exchange(testContext(t), b[:], b[:])
	})
}

// TestPacketsExchange sends messages of any lengths, both ways at once, into other memory and in
// place, from any round on.
func TestPacketsExchange(t *testing.T) {
	ctx := testContext(t)
	rapid.Check(t, func(rt *rapid.T) {
		const most = 100
		lengths := rapid.SliceOfN(rapid.IntRange(0, most), 1, 20).Draw(rt, "lengths")
		ends := newPackets(t, PolicyFor(2, 2, 2), most, rapid.Uint32().Draw(rt, "round")&^1, true)
		both(rt, func(rank int) error {
			for i, n := range lengths {
				data, recv, want := make([]byte, n), bytes.Repeat([]byte{0xEE}, n+8), make([]byte, n)
				message(data, rank, uint32(i))
				message(want, 1-rank, uint32(i))
				into := recv[:n:n]
				if i%3 == 2 {
					into = data
				}
				if err := ends[rank].Exchange(ctx, into, data); err != nil {
					return err
				}
				if !bytes.Equal(into, want) {
					return fmt.Errorf("message %d of %d bytes: got %x, want %x", i, n, into, want)
				}
				if !bytes.Equal(recv[n:], bytes.Repeat([]byte{0xEE}, 8)) {
					return fmt.Errorf("message %d of %d bytes: bytes behind it were written", i, n)
				}
			}
			return nil
		})
	})
}

// TestPacketsFlag: a word counts only if its flag is the number of the round, whatever else may
// stand there.
func TestPacketsFlag(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	const words = 6
	for _, round := range []uint32{1, 2, 3, 0x7FFFFFFF, 0x80000000, math.MaxUint32 - 1, math.MaxUint32} {
		wrong := []uint32{0, round - 1, round + 1, round - 2, round + 2, ^round}
		for bit := range 32 {
			wrong = append(wrong, round^1<<bit)
		}
		for missing := range words {
			for _, flag := range wrong {
				p := newLoop(t, 4*words, round-1)
				for i := range words {
					p.word(p.in, round, i).Store(uint64(round)<<32 | uint64(i))
				}
				p.word(p.in, round, missing).Store(uint64(flag)<<32 | 77)
				// What this rank sends goes elsewhere.
				p.out = make([]byte, len(p.in))
				if err := p.Exchange(ended, make([]byte, 4*words), make([]byte, 4*words)); !errors.Is(err, context.Canceled) {
					t.Fatalf("round %#x: word %d with flag %#x was taken for data: %v", round, missing, flag, err)
				}
			}
		}
	}
}

// newLoop makes packets that come back to the rank that sends them.
func newLoop(t testing.TB, payload int, round uint32) *Packets {
	t.Helper()
	mem := make([]byte, PacketBytes(payload))
	w := &Waiter{Own: ControlAt(make([]byte, ControlSize), 0)}
	p, err := NewPackets(w, 0, mem, mem)
	if err != nil {
		t.Fatal(err)
	}
	p.round = round
	return p
}

// TestPacketsTear looks for a word whose flag arrives without its payload, and for words of
// different rounds in one message.
func TestPacketsTear(t *testing.T) {
	for _, p := range phases {
		t.Run(p.name, func(t *testing.T) {
			const most = 256
			ends := newPackets(t, p.Policy, most, 0, true)
			ctx := testContext(t)
			rounds := uint32(p.rounds(2500))
			both(t, func(rank int) error {
				var data, recv, want [most]byte
				for round := range rounds {
					n := int(round*29) % (most + 1)
					message(data[:n], rank, round)
					message(want[:n], 1-rank, round)
					if err := ends[rank].Exchange(ctx, recv[:n], data[:n]); err != nil {
						return fmt.Errorf("round %d: %w", round, err)
					}
					if !bytes.Equal(recv[:n], want[:n]) {
						return fmt.Errorf("round %d: %d bytes differ from what was sent", round, n)
					}
				}
				return nil
			})
		})
	}
}

// TestPacketsOrder passes plain memory along with a message.
func TestPacketsOrder(t *testing.T) {
	ends := newPackets(t, PolicyFor(2, 2, 2), 8, 0, false)
	ctx := testContext(t)
	var data [2][8]int
	rounds := long(1000)
	both(t, func(rank int) error {
		var send, recv [8]byte
		for round := range rounds {
			for i := range data[rank] {
				data[rank][i] = round
			}
			binary.LittleEndian.PutUint64(send[:], uint64(round))
			if err := ends[rank].Exchange(ctx, recv[:], send[:]); err != nil {
				return err
			}
			if recv != send {
				return fmt.Errorf("round %d: got %x", round, recv)
			}
			for _, got := range data[1-rank] {
				if got != round {
					return fmt.Errorf("round %d: the message came before the data, which are of round %d", round, got)
				}
			}
			if err := ends[rank].Exchange(ctx, nil, nil); err != nil { // they were read
				return err
			}
		}
		return nil
	})
}

// TestPacketsGoRound takes the number of the round past its end. A long message early in the first
// lap leaves words that no message reaches until the same numbers come back: they must not be taken
// for what the peer is about to send.
func TestPacketsGoRound(t *testing.T) {
	const most = 64
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, early := range []uint32{2, 3, 4, 5} {
		for _, last := range []int{0, 4, 5, most} {
			ends := newPackets(t, PolicyFor(2, 2, 2), most, 0, true)
			exchange := func(n int) {
				t.Helper()
				seed := ends[0].round
				both(t, func(rank int) error {
					data, recv, want := make([]byte, n), make([]byte, n), make([]byte, n)
					message(data, rank, seed)
					message(want, 1-rank, seed)
					if err := ends[rank].Exchange(testContext(t), recv, data); err != nil {
						return err
					}
					if !bytes.Equal(recv, want) {
						return fmt.Errorf("round %#x, %d bytes: got %x, want %x", ends[rank].round, n, recv, want)
					}
					return nil
				})
			}
			for round := range uint32(5) {
				if round+1 == early {
					exchange(most)
				} else {
					exchange(0)
				}
			}
			for r := range ends { // four billion rounds of short messages later
				ends[r].round = math.MaxUint32 - 4
			}
			for range 4 {
				exchange(last)
			}
			for round := uint32(2); round < early; round++ {
				exchange(0)
			}
			// The peer is in the midst of sending: one word of its message is there.
			p := ends[0]
			p.word(p.in, early, 0).Store(uint64(early) << 32)
			if err := p.Exchange(ended, make([]byte, most), make([]byte, most)); !errors.Is(err,
				context.Canceled) || p.round != early {
				t.Errorf("round %d finds words that were sent four billion rounds ago: %v", p.round, err)
			}
		}
	}
}

func TestPacketsBlame(t *testing.T) {
	ends := newPackets(t, Policy{}, 8, 0, true)
	p := ends[0]
	p.waiter.Timeout = 1
	mustBlame(t, p.Exchange(testContext(t), nil, nil), "packet exchange", 1, ErrTimeout)
	p.waiter.Own.Abort(Fault{Cause: CauseAbort, Rank: 4, Reporter: 3})
	mustBlame(t, p.Exchange(testContext(t), nil, nil), "packet exchange", 4, ErrAborted)
}
