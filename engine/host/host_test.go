package host_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/engine/host"
)

// most is the largest payload of these tests.
const most = 512

// Summer adds a number of every rank: the whole of an operation between ranks of one host.
type Summer struct {
	window *weft.Window
	rounds *host.Rounds
}

// NewSummer makes a Summer. It is collective.
func NewSummer(ctx context.Context, comm *weft.Comm) (*Summer, error) {
	w, err := comm.Alloc(ctx, host.PadSize(host.RingShare*most))
	if err != nil {
		return nil, err
	}
	words := func(call uint64) string { return fmt.Sprintf("sum of kind %d", call) }
	return &Summer{w, host.NewRounds(comm, w, "summer", words)}, nil
}

// Sum returns the sum of all ranks' numbers, in a call of the same kind on every rank. A rank with a
// negative number refuses, and so all do.
func (s *Summer) Sum(ctx context.Context, kind uint64, number int64) (sum int64, err error) {
	const op = "sum"
	if err := s.rounds.Comm.Operations().Begin(op); err != nil {
		return 0, err
	}
	if err := s.rounds.Sync(op); err != nil {
		return 0, err
	}
	if number < 0 {
		err = weft.Invalidf("%s: %d is negative", op, number)
		s.rounds.Refuse(err)
	} else {
		*s.rounds.Next().Call = kind
		binary.LittleEndian.PutUint64(s.rounds.Fill(8), uint64(number))
	}
	round := s.rounds.Publish()
	if e := s.rounds.Await(ctx, op, round); e != nil {
		return 0, e
	}
	if e := s.rounds.Compare(op, round, err); e != nil {
		return 0, e
	}
	for _, rank := range s.rounds.Live {
		sum += int64(binary.LittleEndian.Uint64(s.rounds.Payload(rank, round, 8)))
	}
	return sum, nil
}

// onRanks runs body on goroutine ranks with a Summer each.
func onRanks(n int, body func(ctx context.Context, comm *weft.Comm, s *Summer) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	meeting, err := bootstrap.NewInProcess(n)
	if err != nil {
		return err
	}
	done := make(chan error, n)
	for _, b := range meeting {
		go func() {
			done <- func() error {
				comm, err := weft.Join(ctx, weft.WithBootstrap(b))
				if err != nil {
					return err
				}
				s, err := NewSummer(ctx, comm)
				if err == nil {
					err = errors.Join(body(ctx, comm, s), s.window.Close())
				}
				return errors.Join(err, comm.Close())
			}()
		}()
	}
	for range n {
		err = errors.Join(err, <-done)
	}
	return err
}

// Two ranks add a number each.
func Example() {
	err := onRanks(2, func(ctx context.Context, comm *weft.Comm, s *Summer) error {
		sum, err := s.Sum(ctx, 1, 20+int64(comm.Rank()))
		if comm.Rank() == 0 {
			fmt.Println(sum)
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: 41
}

// TestRounds makes more calls than there are slots, some of which one rank refuses, or makes
// another kind of: every rank returns the same, and the next call works.
func TestRounds(t *testing.T) {
	const ranks = 3
	err := onRanks(ranks, func(ctx context.Context, comm *weft.Comm, s *Summer) error {
		for i := range int64(40) {
			kind, number := uint64(1), i
			if comm.Rank() == int(i)%ranks {
				switch i % 4 {
				case 1:
					number = -1 - i
				case 2:
					kind = 2
				}
			}
			sum, err := s.Sum(ctx, kind, number)
			switch {
			case i%4 == 1 && (!errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), "is negative")):
				return fmt.Errorf("call %d was refused with %w", i, err)
			case i%4 == 2 && (!errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), "sum of kind 2")):
				return fmt.Errorf("call %d ended with %w", i, err)
			case (i%4 == 0 || i%4 == 3) && (err != nil || sum != ranks*i):
				return fmt.Errorf("call %d: %d (%w)", i, sum, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRefusal: what one rank writes another reads, cut to the room there is.
func TestRefusal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, words := make([]byte, host.RefusalBytes), rapid.StringN(0, 400, 400).Draw(t, "words")
		err, kind := weft.Invalidf("%s", words), weft.ErrInvalid
		if rapid.Bool().Draw(t, "unsupported") {
			err, kind = weft.Unsupportedf("%s", words), weft.ErrUnsupported
		}
		number := host.PutRefusal(text, err)
		if number == 0 || number >= 1<<host.RefusalBits {
			t.Fatalf("refused by %#x", number)
		}
		got := host.TakeRefusal(2, "op", number, text)
		peer, ok := errors.AsType[*weft.PeerError](got)
		if want := err.Error(); !ok || peer.Rank != 2 || !errors.Is(got, kind) ||
			!strings.Contains(got.Error(), want[:min(len(want), host.RefusalBytes)]) {
			t.Fatalf("%q became %q", err, got)
		}
	})
	if err := host.TakeRefusal(0, "op", 0, nil); err != nil {
		t.Errorf("what was not refused is %v", err)
	}
}

// TestStage: a stage says what peers must have finished before it is written.
func TestStage(t *testing.T) {
	var s host.Stage
	for _, step := range [][2]uint64{{3, 0}, {4, 3}, {9, 4}} {
		if got := s.Claim(step[0]); got != step[1] {
			t.Errorf("claimed for %d: wait for %d, want %d", step[0], got, step[1])
		}
	}
	s.Forget()
	if got := s.Claim(10); got != 0 {
		t.Errorf("after a mask: wait for %d", got)
	}
	(*host.Stage)(nil).Forget()
}
