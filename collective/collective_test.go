package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
)

// smallScratch gives payloads of a few hundred bytes, so that small operands take many rounds.
const smallScratch = 4096

// variant is a group of every rank, all alike.
type variant struct {
	name   string
	groups []*Group
}

// variants makes groups that choose for themselves and groups that are told, with much scratch
// memory and with little.
func (j *job) variants(t testing.TB, kind Collective) []variant {
	var all []variant
	for _, scratch := range []int{0, smallScratch} {
		all = append(all, variant{fmt.Sprintf("chosen, scratch %d", scratch), j.group(t, Options{Scratch: scratch})})
		for _, a := range Algorithms() {
			if a.Collective == kind {
				all = append(all, variant{
					fmt.Sprintf("%s, scratch %d", a.Name, scratch),
					j.group(t, Options{Scratch: scratch, Force: []string{a.Name}}),
				})
			}
		}
	}
	return all
}

// TestAlgorithmsAgree compares the bits of every algorithm on operands of some megabytes, large
// enough for outputs that bypass the caches.
func TestAlgorithmsAgree(t *testing.T) {
	count := 2_500_001
	if testing.Short() {
		count = 300_001
	}
	for _, ranks := range []int{2, 5} {
		j := newJob(t, ranks)
		s := shape{dtype: weft.Float32, seed: 7}
		inputs := make([][]byte, ranks)
		for r := range inputs {
			inputs[r] = s.content(r, 4*count)
		}
		want := reference(weft.Sum, s.dtype, nil, inputs)
		windows := make([]*weft.Window, ranks)
		n := len(want)
		j.must(t, func(ctx context.Context, r int) (err error) {
			windows[r], err = j.comms[r].Alloc(ctx, 2*n)
			return err
		})
		for _, a := range Algorithms() {
			if a.Collective != AllReduce {
				continue
			}
			groups := j.group(t, Options{Force: []string{a.Name}})
			for _, inWindow := range []bool{false, true} {
				outs := make([][]byte, ranks)
				j.must(t, func(ctx context.Context, r int) error {
					mem := make([]byte, 2*n)
					if inWindow {
						mem = windows[r].Bytes()
						clear(mem[n:])
					}
					copy(mem, inputs[r])
					outs[r] = mem[n:]
					return groups[r].AllReduce(ctx, nil, weft.TensorAt(outs[r], s.dtype, count),
						weft.TensorAt(mem, s.dtype, count), weft.Sum)
				})
				for r := range outs {
					if !bytes.Equal(outs[r], want) {
						t.Errorf("%s, windows %t: rank %d of %d differs from the loop", a.Name, inWindow, r, ranks)
					}
				}
			}
		}
	}
}

// TestMixedOperations runs long random sequences of operations, all of whose results are checked,
// over two groups at once.
func TestMixedOperations(t *testing.T) {
	steps := 4000
	if testing.Short() {
		steps = 800
	}
	for _, ranks := range []int{2, 4, 7} {
		j := newJob(t, ranks)
		groups := [][]*Group{j.group(t, Options{Scratch: smallScratch}), j.group(t, Options{})}
		j.must(t, func(ctx context.Context, r int) error {
			draw := rand.New(rand.NewPCG(3, 4)) // the same on every rank
			for i := range steps {
				g := groups[draw.IntN(2)][r]
				n := draw.IntN(1 << draw.IntN(13))
				root := draw.IntN(ranks)
				mem := make([]int64, n)
				for k := range mem {
					mem[k] = int64((r + 1) * (k + i))
				}
				switch draw.IntN(4) {
				case 0:
					if err := g.Barrier(ctx, nil); err != nil {
						return err
					}
				case 1:
					if err := g.AllReduce(ctx, nil, weft.TensorOf(mem), weft.TensorOf(mem), weft.Sum); err != nil {
						return err
					}
					for k, v := range mem {
						if want := int64(ranks*(ranks+1)/2) * int64(k+i); v != want {
							return fmt.Errorf("step %d: element %d of the sum is %d, want %d", i, k, v, want)
						}
					}
				case 2:
					all := make([]int64, ranks*n)
					if err := g.AllGather(ctx, nil, weft.TensorOf(all), weft.TensorOf(mem)); err != nil {
						return err
					}
					for k, v := range all {
						if want := int64((k/n + 1) * (k%n + i)); v != want {
							return fmt.Errorf("step %d: element %d of all is %d, want %d", i, k, v, want)
						}
					}
				default:
					if err := g.Broadcast(ctx, nil, weft.TensorOf(mem), root); err != nil {
						return err
					}
					for k, v := range mem {
						if want := int64((root + 1) * (k + i)); v != want {
							return fmt.Errorf("step %d: element %d of rank %d's is %d, want %d", i, k, root, v, want)
						}
					}
				}
			}
			return nil
		})
	}
}

// attempt is an operation as one rank makes it.
type attempt func(ctx context.Context, g *Group) error

func reduceOf(n int, op weft.Op) attempt {
	return func(ctx context.Context, g *Group) error {
		x := make([]float32, n)
		return g.AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), op)
	}
}

func broadcastOf(n, root int) attempt {
	return func(ctx context.Context, g *Group) error {
		return g.Broadcast(ctx, nil, weft.TensorOf(make([]int32, n)), root)
	}
}

func TestMismatchedCalls(t *testing.T) {
	barrier := func(ctx context.Context, g *Group) error { return g.Barrier(ctx, nil) }
	cases := []struct {
		name        string
		first, rest attempt
		words       []string
	}{
		{
			"count", reduceOf(3, weft.Sum), reduceOf(4, weft.Sum),
			[]string{"it calls all-reduce sum of", "this rank all-reduce sum of", "3 fp32", "4 fp32"},
		},
		{"algorithm", reduceOf(3, weft.Sum), reduceOf(1<<20, weft.Sum), []string{"3 fp32", "1048576 fp32"}},
		{"op", reduceOf(3, weft.Max), reduceOf(3, weft.Avg), []string{"all-reduce max", "all-reduce avg"}},
		{"root", broadcastOf(5, 0), broadcastOf(5, 1), []string{"from rank 0", "from rank 1"}},
		{"collective", barrier, broadcastOf(1<<20, 1), []string{"barrier", "broadcast of 1048576 int32 from rank 1"}},
		{"dtype", reduceOf(5, weft.Sum), func(ctx context.Context, g *Group) error {
			x := make([]int32, 5)
			return g.AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum)
		}, []string{"5 fp32", "5 int32"}},
	}
	for _, ranks := range []int{2, 4} {
		j := newJob(t, ranks)
		groups := j.group(t, Options{})
		for _, c := range cases {
			errs := j.each(t, func(ctx context.Context, r int) error {
				if r == 0 {
					return c.first(ctx, groups[r])
				}
				return c.rest(ctx, groups[r])
			})
			for r, err := range errs {
				if !errors.Is(err, weft.ErrMismatch) {
					t.Fatalf("%s: rank %d of %d returns %v", c.name, r, ranks, err)
				}
				if peer, ok := errors.AsType[*weft.PeerError](err); !ok || (peer.Rank == 0) == (r == 0) {
					t.Errorf("%s: rank %d blames none or the wrong rank: %v", c.name, r, err)
				}
				for _, w := range c.words {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%s: %q does not say %q", c.name, err, w)
					}
				}
			}
			// Nothing is broken: the next operation works.
			j.must(t, func(ctx context.Context, r int) error { return reduceOf(1000, weft.Sum)(ctx, groups[r]) })
		}
	}
}

func TestRefusedArguments(t *testing.T) {
	f := make([]float32, 8)
	h := make([]weft.BF16, 8)
	scales := make([]weft.E8M0, 8)
	stream := new(weft.Stream)
	cases := []struct {
		name string
		call attempt
		want error
		word string
	}{
		{"stream", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, stream, weft.TensorOf(f), weft.TensorOf(f), weft.Sum)
		}, weft.ErrUnsupported, "streams"},
		{"op", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, nil, weft.TensorOf(f), weft.TensorOf(f), 99)
		}, weft.ErrInvalid, "op(99)"},
		{"types", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, nil, weft.TensorOf(f), weft.TensorOf(h), weft.Sum)
		}, weft.ErrInvalid, "input of bf16, output of fp32"},
		{"scales", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, nil, weft.TensorOf(scales), weft.TensorOf(scales), weft.Sum)
		}, weft.ErrUnsupported, "ue8m0"},
		{"counts", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, nil, weft.TensorOf(f[:4]), weft.TensorOf(f), weft.Sum)
		}, weft.ErrInvalid, "input of 8 elements, output of 4"},
		{"overlap", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, nil, weft.TensorOf(f[:6]), weft.TensorOf(f[1:7]), weft.Sum)
		}, weft.ErrInvalid, "overlap"},
		{"absent", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, nil, weft.TensorOf(f), weft.Absent("not today"), weft.Sum)
		}, weft.ErrInvalid, "not today"},
		{"no memory", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.Tensor{DType: weft.Float32, Shape: []int{4}}, 0)
		}, weft.ErrInvalid, "without memory"},
		{"no type", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.Tensor{Data: unsafe.Pointer(&[4]byte{}), Shape: []int{4}}, 0)
		}, weft.ErrInvalid, "invalid"},
		{"negative", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.Tensor{DType: weft.Float32, Shape: []int{-4}}, 0)
		}, weft.ErrInvalid, "-4 elements"},
		{"root", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.TensorOf(f), 7)
		}, weft.ErrInvalid, "root 7 of 3"},
		{"gathered size", func(ctx context.Context, g *Group) error {
			return g.AllGather(ctx, nil, weft.TensorOf(f), weft.TensorOf(f[:2]))
		}, weft.ErrInvalid, "input of 2 elements on 3 ranks, output of 8"},
		{"gathered overlap", func(ctx context.Context, g *Group) error {
			return g.AllGather(ctx, nil, weft.TensorOf(f[:6]), weft.TensorOf(f[5:7]))
		}, weft.ErrInvalid, "overlap"},
	}
	j := newJob(t, 3)
	groups := j.group(t, Options{})
	for _, c := range cases {
		// One rank errs; the others, whatever their calls, hear of it.
		errs := j.each(t, func(ctx context.Context, r int) error {
			if r == 1 {
				return c.call(ctx, groups[r])
			}
			return reduceOf(100_000*r, weft.Sum)(ctx, groups[r])
		})
		if !errors.Is(errs[1], c.want) || !strings.Contains(errs[1].Error(), c.word) {
			t.Errorf("%s: %v", c.name, errs[1])
		}
		for _, r := range []int{0, 2} {
			var peer *weft.PeerError
			if !errors.As(errs[r], &peer) || peer.Rank != 1 || !errors.Is(errs[r], c.want) ||
				!strings.Contains(errs[r].Error(), c.word) {
				t.Errorf("%s: rank %d returns %v", c.name, r, errs[r])
			}
		}
		// All ranks err.
		for r, err := range j.each(t, func(ctx context.Context, r int) error { return c.call(ctx, groups[r]) }) {
			if !errors.Is(err, c.want) {
				t.Errorf("%s: rank %d returns %v", c.name, r, err)
			}
		}
		j.must(t, func(ctx context.Context, r int) error { return reduceOf(1000, weft.Sum)(ctx, groups[r]) })
	}
}

func TestGroupsAreAgreedOn(t *testing.T) {
	j := newJob(t, 2)
	for r, err := range j.each(t, func(ctx context.Context, r int) error {
		_, err := New(ctx, j.comms[r], Options{Scratch: 4096 << r})
		return err
	}) {
		if !errors.Is(err, weft.ErrMismatch) {
			t.Errorf("rank %d returns %v", r, err)
		}
	}
	for _, scratch := range []int{-1, MaxScratch + 1, math.MaxInt} {
		for r, err := range j.each(t, func(ctx context.Context, r int) error {
			_, err := New(ctx, j.comms[r], Options{Scratch: scratch})
			return err
		}) {
			if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(),
				fmt.Sprintf("scratch memory of %d bytes", scratch)) {
				t.Errorf("rank %d returns %v", r, err)
			}
		}
	}
	for r, err := range j.each(t, func(ctx context.Context, r int) error {
		_, err := New(ctx, j.comms[r], Options{Force: []string{"all-reduce/magic"}})
		return err
	}) {
		if !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("rank %d returns %v", r, err)
		}
	}
	groups := j.group(t, Options{})
	for _, g := range groups {
		if err := errors.Join(g.Close(), g.Close()); err != nil {
			t.Error(err)
		}
		if err := g.Barrier(t.Context(), nil); !errors.Is(err, weft.ErrClosed) {
			t.Errorf("a closed group returns %v", err)
		}
	}
}

func TestMaskedRanksAreLeftOut(t *testing.T) {
	const ranks, masked = 4, 2
	j := newJob(t, ranks)
	before := j.variants(t, AllReduce)
	n := 5000
	for round := range 3 {
		out := masked
		if round == 1 {
			out = -1 // the rank is back
		}
		errs := j.each(t, func(ctx context.Context, r int) error {
			switch {
			case out < 0:
				return j.comms[r].SetMask(ctx) // the rank that was left out learns from the others' aim what it missed
			case r == out:
				return nil
			default:
				return j.comms[r].SetMask(ctx, out)
			}
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		sum, live := float32(0), 0
		for r := range ranks {
			if r != out {
				sum += float32(r + 1)
				live++
			}
		}
		for _, v := range before {
			j.must(t, func(ctx context.Context, r int) error {
				if r == out {
					return nil
				}
				x := slices.Repeat([]float32{float32(r + 1)}, n)
				if err := v.groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Avg); err != nil {
					return err
				}
				want := slices.Repeat([]float32{sum / float32(live)}, n)
				if d := cmp.Diff(want, x); d != "" {
					return fmt.Errorf("%s: %s", v.name, d)
				}
				all := slices.Repeat([]int32{-1}, ranks*n)
				if err := v.groups[r].AllGather(ctx, nil, weft.TensorOf(all),
					weft.TensorOf(slices.Repeat([]int32{int32(r)}, n))); err != nil {
					return err
				}
				for i, got := range all {
					want := int32(i / n)
					if i/n == out {
						want = -1
					}
					if got != want {
						return fmt.Errorf("%s: element %d is %d, want %d", v.name, i, got, want)
					}
				}
				if out < 0 {
					return nil
				}
				err := v.groups[r].Broadcast(ctx, nil, weft.TensorOf(all), out)
				if !errors.Is(err, weft.ErrMasked) {
					return fmt.Errorf("broadcast from a masked rank: %v", err)
				}
				return nil
			})
		}
	}
}

// TestCancelledRank: a rank whose context ends gives the operation up on all of them; after SetMask
// they go on.
func TestCancelledRank(t *testing.T) {
	const ranks = 3
	for _, n := range []int{2, 200_000} {
		j := newJob(t, ranks)
		groups := j.group(t, Options{})
		errs := j.each(t, func(ctx context.Context, r int) error {
			switch r {
			case 0:
				return nil // never comes
			case 1:
				ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				return reduceOf(n, weft.Sum)(ctx, groups[r])
			default:
				return reduceOf(n, weft.Sum)(ctx, groups[r])
			}
		})
		if !errors.Is(errs[1], context.DeadlineExceeded) {
			t.Errorf("the cancelled rank returns %v", errs[1])
		}
		var peer *weft.PeerError
		if !errors.As(errs[2], &peer) || peer.Rank != 1 || !errors.Is(errs[2], weft.ErrAborted) {
			t.Errorf("its peer returns %v", errs[2])
		}
		j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
		j.must(t, func(ctx context.Context, r int) error {
			x := []int64{int64(r + 1)}
			if err := groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum); err != nil {
				return err
			}
			if x[0] != ranks*(ranks+1)/2 {
				return fmt.Errorf("the sum is %d", x[0])
			}
			return nil
		})
	}
}

// TestNothingIsAllocated counts allocations of an operation on all ranks together.
func TestNothingIsAllocated(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const times = 200
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	windows := make([]*weft.Window, 2)
	j.must(t, func(ctx context.Context, r int) (err error) {
		windows[r], err = j.comms[r].Alloc(ctx, 1<<20)
		return err
	})
	for _, n := range []int{2, 1000, 100_000} {
		for _, inWindow := range []bool{false, true} {
			mem := [2][]byte{make([]byte, 4*n), make([]byte, 4*n)}
			if inWindow {
				mem = [2][]byte{windows[0].Bytes()[:4*n], windows[1].Bytes()[:4*n]}
			}
			ctx := testContext(t)
			call := func(r int) {
				x := weft.TensorAt(mem[r], weft.Float32, n)
				if err := groups[r].AllReduce(ctx, nil, x, x, weft.Max); err != nil {
					t.Error(err)
				}
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range times + 1 {
					call(1)
				}
			}()
			if a := testing.AllocsPerRun(times, func() { call(0) }); a > 2 { // the two shapes
				t.Errorf("%d elements, windows %t: %v allocations", n, inWindow, a)
			}
			<-done
		}
	}
}
