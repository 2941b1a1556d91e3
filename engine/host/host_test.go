package host_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/internal/rankset"
	"github.com/weftgo/weft/internal/ranktest"
)

// most is the longest payload of these tests.
const most = 512

// Summer adds a number of every rank: the whole of an operation between ranks of one host.
type Summer struct {
	*host.Rounds
	stage *host.Stage
}

// NewSummer makes a Summer. It is collective.
func NewSummer(ctx context.Context, comm *weft.Comm) (*Summer, error) {
	rounds, err := host.New(ctx, comm, host.Config{
		Kind: "summer", Ring: host.RingShare * most,
		Differs: func(c rankset.Camps[uint64]) string {
			return c.Calling("sums", func(kind uint64) string { return fmt.Sprintf("kind %d", kind) })
		},
		Chooses: func(c rankset.Camps[uint32]) string {
			return c.Calling("chooses", func(choice uint32) string { return fmt.Sprint(choice) })
		},
	})
	if err != nil {
		return nil, err
	}
	w, err := comm.Alloc(ctx, most)
	if err != nil {
		return nil, errors.Join(err, rounds.Window.Close())
	}
	return &Summer{rounds, rounds.NewStage(w)}, nil
}

// Close gives the memory up on this rank.
func (s *Summer) Close() error { return errors.Join(s.stage.Window.Close(), s.Window.Close()) }

// Sum returns the sum of all ranks' numbers, in a call of the same kind on every rank. A rank with a
// negative number refuses, and so all do. The number stands at the end of n bytes of payload.
func (s *Summer) Sum(ctx context.Context, kind uint64, number int64, n int) (sum int64, err error) {
	const op = "sum"
	if err := s.Begin(op); err != nil {
		return 0, err
	}
	if number < 0 {
		return 0, s.refuse(ctx, op, number)
	}
	binary.LittleEndian.PutUint64(s.Fill(n)[n-8:], uint64(number))
	round := s.Open(kind)
	if err := s.AwaitCalls(ctx, op, round, nil, nil); err != nil {
		return 0, err
	}
	for _, rank := range s.Live {
		sum += int64(binary.LittleEndian.Uint64(s.Payload(rank, round, n)[n-8:]))
	}
	return sum, s.Comm.Operations().Begin(op)
}

// SumStaged is Sum with numbers that peers read on a stage, the second one of two rows.
func (s *Summer) SumStaged(ctx context.Context, kind uint64, number int64) (sum int64, err error) {
	const op = "staged sum"
	if err := s.Begin(op); err != nil {
		return 0, err
	}
	if number < 0 {
		defer s.Leave()
		return 0, s.refuse(ctx, op, number)
	}
	if err := s.stage.Claim(ctx, op, s.Next()); err != nil {
		return 0, err
	}
	mem := s.stage.Window.Bytes()
	binary.LittleEndian.PutUint64(mem[24:], uint64(number))
	rows, ok := s.Find(unsafe.Pointer(&mem[8]), 32, 16)
	if !ok {
		return 0, errors.New("the stage is no window")
	}
	s.PutOperands(host.OperandRef{}, rows)
	round := s.Open(kind)
	defer s.Leave()
	if err := s.AwaitCalls(ctx, op, round, nil, nil); err != nil {
		return 0, err
	}
	for _, rank := range s.Live {
		ref := s.Operand(rank, round, 1)
		mem, err := s.Resolve(rank, ref, op)
		if err != nil {
			return 0, err
		}
		if len(mem) < int(ref.Stride)+8 {
			// Of a rank that was left behind: peers say other things by now.
			return 0, s.Broken(&weft.PeerError{Rank: rank, Op: op, Err: errors.New("its operand ends behind its window")})
		}
		sum += int64(binary.LittleEndian.Uint64(mem[ref.Stride:]))
	}
	return sum, s.Comm.Operations().Begin(op)
}

func (s *Summer) refuse(ctx context.Context, op string, number int64) error {
	err := weft.Invalidf("%s: %d is negative", op, number)
	if number%2 == 0 {
		err = weft.Unsupportedf("%s: %d is negative and even", op, number)
	}
	return s.AwaitCalls(ctx, op, s.Refuse(err), err, nil)
}

// onRanks runs body on goroutine ranks with a Summer each.
func onRanks(n int, body func(ctx context.Context, comm *weft.Comm, s *Summer) error) error {
	return ranktest.Run(n, ranktest.OnHost, func(ctx context.Context, comm *weft.Comm) error {
		s, err := NewSummer(ctx, comm)
		if err != nil {
			return err
		}
		return errors.Join(body(ctx, comm, s), s.Close())
	})
}

// Two ranks add a number each.
func Example() {
	err := onRanks(2, func(ctx context.Context, comm *weft.Comm, s *Summer) error {
		sum, err := s.Sum(ctx, 1, 20+int64(comm.Rank()), 8)
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

// step is what all ranks do at the same time: they make a call, or set a mask.
type step struct {
	bytes   int      // of the payload; 0: on a stage
	numbers []int64  // of the ranks
	kinds   []uint64 // of their calls
	fails   int      // a rank that aborts in place of the call, or -1; then all set a mask
	opens   bool     // it opens the operation first
	masked  []int    // the mask, if ranks set one
	sets    bool
}

// drawSteps draws what n ranks do. Rank keeps is never masked.
func drawSteps(t *rapid.T, n, keeps int) []step {
	all := make([]step, rapid.IntRange(1, 16).Draw(t, "steps"))
	live := numbers(n)
	for i := range all {
		s := step{
			bytes:   rapid.SampledFrom([]int{0, 0, 8, 40, 41, 200, most}).Draw(t, "bytes"),
			numbers: make([]int64, n), kinds: make([]uint64, n), fails: -1,
		}
		does := rapid.IntRange(0, 9).Draw(t, "does")
		for r := range n {
			s.numbers[r], s.kinds[r] = rapid.Int64Range(0, 1<<40).Draw(t, "number"), 1
			if does <= 1 && rapid.Bool().Draw(t, "refuses") {
				s.numbers[r] = -1 - s.numbers[r]
			}
			if does == 1 || does == 2 {
				s.kinds[r] = rapid.Uint64Range(1, 3).Draw(t, "kind")
			}
		}
		if does == 3 {
			s.fails, s.opens = rapid.SampledFrom(live).Draw(t, "fails"), s.bytes > 0 && rapid.Bool().Draw(t, "opens")
		}
		if s.sets = does == 3 || does == 4; s.sets {
			live = live[:0]
			for r := range n {
				if r != keeps && rapid.IntRange(0, 2).Draw(t, "masks") == 0 {
					s.masked = append(s.masked, r)
				} else {
					live = append(live, r)
				}
			}
		}
		all[i] = s
	}
	return all
}

// do makes the step's call on one rank.
func (s *step) do(ctx context.Context, m *Summer) (int64, error) {
	r := m.Comm.Rank()
	switch {
	case s.fails == r:
		if err := m.Begin("fails"); s.opens && err == nil {
			binary.LittleEndian.PutUint64(m.Fill(s.bytes)[s.bytes-8:], uint64(s.numbers[r]))
			m.Open(s.kinds[r])
		}
		m.Comm.Abort()
		return 0, m.Comm.Err()
	case s.bytes == 0:
		return m.SumStaged(ctx, s.kinds[r], s.numbers[r])
	default:
		return m.Sum(ctx, s.kinds[r], s.numbers[r], s.bytes)
	}
}

// check compares what a rank got with what every live rank must get.
func (s *step) check(rank int, live []int, sum int64, err error) error {
	peer, named := errors.AsType[*weft.PeerError](err)
	kinds := rankset.CampsOf(func(yield func(int, uint64) bool) {
		for _, r := range live {
			if !yield(r, s.kinds[r]) {
				return
			}
		}
	})
	refused, want := -1, int64(0)
	for _, r := range live {
		if s.numbers[r] < 0 && refused < 0 {
			refused = r
		}
		want += s.numbers[r]
	}
	var ok bool
	switch {
	case s.fails >= 0 && s.opens && err == nil: // this rank was faster than the failure
		ok = sum == want
	case s.fails >= 0:
		ok = errors.Is(err, weft.ErrAborted) && (rank == s.fails || named && peer.Rank == s.fails) ||
			errors.Is(err, weft.ErrMasked) && slices.Contains(s.masked, rank) // by then
	case refused >= 0:
		blamed := refused
		if s.numbers[rank] < 0 {
			blamed = rank
		}
		kind := weft.ErrInvalid
		if s.numbers[blamed]%2 == 0 {
			kind = weft.ErrUnsupported
		}
		ok = errors.Is(err, kind) && strings.Contains(err.Error(), fmt.Sprintf("%d is negative", s.numbers[blamed])) &&
			(blamed == rank || named && peer.Rank == blamed)
	case kinds.Differ():
		words := kinds.Calling("sums", func(kind uint64) string { return fmt.Sprintf("kind %d", kind) })
		ok = errors.Is(err, weft.ErrMismatch) && named && peer.Rank == kinds.Culprit() && strings.Contains(err.Error(), words)
	default:
		ok = err == nil && sum == want
	}
	if !ok {
		return fmt.Errorf("rank %d of %v got %d and %w", rank, live, sum, err)
	}
	return nil
}

// TestRounds has ranks make random calls, of which some refuse, some make another one, some fail and
// some are masked and come back: every rank that takes part returns the same.
func TestRounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(t, "ranks")
		steps := drawSteps(t, n, rapid.IntRange(0, n-1).Draw(t, "keeps"))
		// A failure or a mask ends the call before it too, on a rank that has not returned from it.
		returned := make([]sync.WaitGroup, len(steps))
		for i := range returned {
			returned[i].Add(n)
		}
		err := onRanks(n, func(ctx context.Context, comm *weft.Comm, m *Summer) error {
			live, left := numbers(n), returned
			defer func() {
				for i := range left {
					left[i].Done()
				}
			}()
			for i, s := range steps {
				left[0].Done()
				left = left[1:]
				if s.sets {
					returned[i].Wait()
				}
				if slices.Contains(live, comm.Rank()) && (s.fails >= 0 || !s.sets) {
					sum, err := s.do(ctx, m)
					if err := s.check(comm.Rank(), live, sum, err); err != nil {
						return fmt.Errorf("step %d, %+v: %w", i, s, err)
					}
				}
				if !s.sets {
					continue
				}
				live = slices.DeleteFunc(numbers(n), func(r int) bool { return slices.Contains(s.masked, r) })
				if slices.Contains(live, comm.Rank()) {
					if err := comm.SetMask(ctx, s.masked...); err != nil {
						return fmt.Errorf("step %d, %+v: rank %d: %w", i, s, comm.Rank(), err)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// numbers lists the numbers below n.
func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// TestWaits: the time that a rank waits for another is added to that one's number, and to no other.
func TestWaits(t *testing.T) {
	const late = 20 * time.Millisecond
	err := onRanks(2, func(ctx context.Context, comm *weft.Comm, s *Summer) error {
		const op = "waits"
		if err := s.Begin(op); err != nil {
			return err
		}
		if comm.Rank() == 1 {
			time.Sleep(late)
		}
		waits := make([]int64, 2)
		if err := s.AwaitCalls(ctx, op, s.Open(1), nil, waits); err != nil {
			return err
		}
		if waits[comm.Rank()] != 0 || comm.Rank() == 0 && waits[1] < int64(late)/2 {
			return fmt.Errorf("rank %d waited for %v", comm.Rank(), waits)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMaskedOwner: a rank that was masked when the owner was made cannot take part later.
func TestMaskedOwner(t *testing.T) {
	const masked = 2
	err := onRanks(3, func(ctx context.Context, comm *weft.Comm, s *Summer) error {
		var few *Summer
		if comm.Rank() != masked {
			if err := comm.SetMask(ctx, masked); err != nil {
				return err
			}
			var err error
			if few, err = NewSummer(ctx, comm); err != nil {
				return err
			}
			if sum, err := few.Sum(ctx, 1, 5, 8); sum != 10 || err != nil {
				return fmt.Errorf("two ranks add up to %d (%w)", sum, err)
			}
			if few.OwnBytes(masked) != nil {
				return errors.New("a masked rank has memory")
			}
		}
		if err := comm.SetMask(ctx); err != nil || few == nil {
			return err
		}
		for range 2 {
			if _, err := few.Sum(ctx, 1, 5, 8); !errors.Is(err, weft.ErrMasked) {
				return fmt.Errorf("with a rank that has no memory: %w", err)
			}
		}
		mem := few.stage.Window.Bytes()
		if _, ok := s.Find(unsafe.Pointer(&mem[0]), 8, 8); ok {
			err := s.Begin("find")
			if _, ok := s.Find(unsafe.Pointer(&mem[0]), 8, 8); ok || err != nil {
				return fmt.Errorf("an operand that a rank cannot reach is found (%w)", err)
			}
		}
		return few.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestChoices: ranks compare their choices where their calls are the same, and the next call is free.
func TestChoices(t *testing.T) {
	err := onRanks(2, func(ctx context.Context, comm *weft.Comm, s *Summer) error {
		for _, c := range []struct {
			choices [2]uint32
			kinds   [2]uint64
			words   string
		}{
			{[2]uint32{3, 3}, [2]uint64{1, 1}, ""},
			{[2]uint32{3, 4}, [2]uint64{1, 1}, "rank 0 chooses "},
			{[2]uint32{0, 4}, [2]uint64{1, 1}, "rank 0 chooses "},
			{[2]uint32{0, 4}, [2]uint64{1, 2}, "rank 0 sums kind 1, rank 1 kind 2"},
			{[2]uint32{0, 0}, [2]uint64{1, 1}, ""},
		} {
			s.Choice = c.choices[comm.Rank()]
			_, err := s.Sum(ctx, c.kinds[comm.Rank()], 1, 8)
			if c.words == "" && err != nil ||
				c.words != "" && (!errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), c.words)) {
				return fmt.Errorf("%+v: %w", c, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
