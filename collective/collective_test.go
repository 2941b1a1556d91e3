package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
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
			if a.Collective == kind && !betweenHosts(a) {
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
			if a.Collective != AllReduce || betweenHosts(a) {
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

// TestBroadcastOfOneTensor: all ranks may give the tensor of a broadcast as its input alone.
func TestBroadcastOfOneTensor(t *testing.T) {
	j := newJob(t, 3)
	groups := j.group(t, Options{})
	j.must(t, func(ctx context.Context, r int) error {
		x := []int32{int32(r), 7}
		err := groups[r].Do(ctx, nil, Call{Collective: Broadcast, In: weft.TensorOf(x), Root: 1})
		if err == nil && x[0] != 1 {
			err = fmt.Errorf("rank %d has %v", r, x)
		}
		return err
	})
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
				switch draw.IntN(8) {
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
				case 3:
					all, part := make([]int64, ranks*n), make([]int64, n)
					for k := range all {
						all[k] = int64((r + 1) * (k + i))
					}
					if err := g.ReduceScatter(ctx, nil, weft.TensorOf(part), weft.TensorOf(all), weft.Sum); err != nil {
						return err
					}
					for k, v := range part {
						if want := int64(ranks*(ranks+1)/2) * int64(r*n+k+i); v != want {
							return fmt.Errorf("step %d: element %d of the part is %d, want %d", i, k, v, want)
						}
					}
				case 4, 5:
					kind := []Collective{AllToAll, AllToAllV}[draw.IntN(2)]
					all, got := make([]int64, ranks*n), make([]int64, ranks*n)
					for k := range all {
						all[k] = int64((r + 1) * (k + i))
					}
					counts := slices.Repeat([]int{n}, ranks)
					c := Call{Collective: kind, Out: weft.TensorOf(got), In: weft.TensorOf(all)}
					if kind == AllToAllV {
						c.Counts.Send, c.Counts.Recv = counts, counts
					}
					if err := g.Do(ctx, nil, c); err != nil {
						return err
					}
					for k, v := range got {
						if want := int64((k/n + 1) * (r*n + k%n + i)); v != want {
							return fmt.Errorf("step %d: element %d of %v is %d, want %d", i, k, kind, v, want)
						}
					}
				case 6: // there and back
					all, part := make([]int64, ranks*n), make([]int64, n)
					if err := g.Gather(ctx, nil, weft.TensorOf(all), weft.TensorOf(mem), root); err != nil {
						return err
					}
					if err := g.Scatter(ctx, nil, weft.TensorOf(part), weft.TensorOf(all), root); err != nil {
						return err
					}
					if !slices.Equal(part, mem) {
						return fmt.Errorf("step %d: gathered and scattered by rank %d, %v is %v", i, root, mem, part)
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
			[]string{"rank 0 calls all-reduce sum of 3 fp32, rank", " all-reduce sum of 4 fp32"},
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
				blamed := 0
				if ranks == 2 { // neither
					blamed = -1
				}
				if peer, ok := errors.AsType[*weft.PeerError](err); !ok || peer.Rank != blamed {
					t.Errorf("%s: rank %d of %d does not blame rank %d: %v", c.name, r, ranks, blamed, err)
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
		{"absent from a barrier", func(ctx context.Context, g *Group) error {
			return g.Do(ctx, nil, Call{Collective: Barrier, Out: weft.Absent("not now")})
		}, weft.ErrInvalid, "barrier: not now"},
		{"no memory", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.Tensor{DType: weft.Float32, Shape: []int{4}}, 0)
		}, weft.ErrInvalid, "without memory"},
		{"no output", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, nil, weft.Tensor{}, weft.TensorOf(f), weft.Sum)
		}, weft.ErrInvalid, "there is no output"},
		{"no such reduction", func(ctx context.Context, g *Group) error {
			return g.AllReduce(ctx, nil, weft.TensorOf(f), weft.TensorOf(f), 55)
		}, weft.ErrInvalid, "no such reduction: op(55); want one of sum, prod, min, max, avg, premulsum"},
		{"no type", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.Tensor{Data: unsafe.Pointer(&[4]byte{}), Shape: []int{4}}, 0)
		}, weft.ErrInvalid, "output of 4 elements without a type"},
		{"negative", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.Tensor{DType: weft.Float32, Shape: []int{-4}}, 0)
		}, weft.ErrInvalid, "-4 is negative"},
		{"no such type", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.Tensor{DType: 40, Shape: []int{0}}, 0)
		}, weft.ErrInvalid, "of type dtype(40), which there is not; want one of bf16, fp16"},
		{"root", func(ctx context.Context, g *Group) error {
			return g.Broadcast(ctx, nil, weft.TensorOf(f), 7)
		}, weft.ErrInvalid, "root 7 of 3"},
		{"gathered size", func(ctx context.Context, g *Group) error {
			return g.AllGather(ctx, nil, weft.TensorOf(f), weft.TensorOf(f[:2]))
		}, weft.ErrInvalid, "input of 2 elements on 3 ranks, output of 8"},
		{"root's parts", func(ctx context.Context, g *Group) error {
			return g.Scatter(ctx, nil, weft.TensorOf(f[:2]), weft.TensorOf(f), 1)
		}, weft.ErrInvalid, "no part for each of 3 ranks"},
		{"all-to-all", func(ctx context.Context, g *Group) error {
			return g.AllToAll(ctx, nil, weft.TensorOf(f[:3]), weft.TensorOf(f[2:8]))
		}, weft.ErrInvalid, "output of 3; it takes 6"},
		{"few counts", func(ctx context.Context, g *Group) error {
			return g.AllGatherV(ctx, nil, weft.TensorOf(f), weft.TensorOf(f[:2]), []int{2, 2}, nil)
		}, weft.ErrInvalid, "2 output counts for 3 ranks"},
		{"long part", func(ctx context.Context, g *Group) error {
			return g.ReduceScatterV(ctx, nil, weft.TensorOf(f[:2]), weft.TensorOf(f), []int{2, 2, 7}, weft.Sum)
		}, weft.ErrInvalid, "the input part of rank 2 is 7 elements at 4"},
		{"parts overlap", func(ctx context.Context, g *Group) error {
			return g.AllGatherV(ctx, nil, weft.TensorOf(f), weft.TensorOf(make([]float32, 2)), []int{2, 2, 2}, []int{0, 1, 4})
		}, weft.ErrInvalid, "parts of ranks 0 and 1 overlap"},
		{"read parts overlap", func(ctx context.Context, g *Group) error {
			return g.Do(ctx, nil, Call{
				Collective: ReduceScatterV, Out: weft.TensorOf(f[1:3]), In: weft.TensorOf(f),
				Counts: Counts{Send: []int{2, 2, 2}, SendAt: []int{0, 1, 4}},
			})
		}, weft.ErrInvalid, "parts of ranks 0 and 1 overlap"},
		{"own counts", func(ctx context.Context, g *Group) error {
			return g.AllToAllV(ctx, nil, weft.TensorOf(make([]float32, 8)), weft.TensorOf(f),
				Counts{Send: []int{1, 2, 3}, Recv: []int{1, 3, 3}})
		}, weft.ErrInvalid, "rank 1 sends itself 2 elements and receives 3"},
		{"words of a barrier", func(ctx context.Context, g *Group) error {
			return g.Do(ctx, nil, Call{Collective: Barrier, Words: Words{Progress: weft.TensorOf(make([]uint64, 3))}})
		}, weft.ErrInvalid, "an all-gather has progress words"},
		{"norm of a barrier", func(ctx context.Context, g *Group) error {
			return g.Do(ctx, nil, Call{Collective: Barrier, Norm: &Norm{Gamma: weft.TensorOf(f)}})
		}, weft.ErrInvalid, "a norm goes with an all-reduce sum"},
		{"bool average", func(ctx context.Context, g *Group) error {
			x := weft.TensorAt(make([]byte, 4), weft.Bool, 4)
			return g.Reduce(ctx, nil, x, x, weft.Avg, 0)
		}, weft.ErrUnsupported, "avg of bool"},
		{"no scalar", func(ctx context.Context, g *Group) error {
			return g.Do(ctx, nil, Call{Collective: AllReduce, Op: weft.PreMulSum, Out: weft.TensorOf(f), In: weft.TensorOf(f)})
		}, weft.ErrInvalid, "takes a scalar: one element of fp32"},
		{"scalar on a GPU", func(ctx context.Context, g *Group) error {
			return g.Do(ctx, nil, Call{
				Collective: AllReduce, Op: weft.PreMulSum, Out: weft.TensorOf(f), In: weft.TensorOf(f),
				Scalar: weft.TensorOf(f[:1]), ScalarOnDevice: true,
			})
		}, weft.ErrUnsupported, "scalar of a GPU"},
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
		_, err := New(ctx, j.comms[r], Options{Loopback: 4})
		return err
	}) {
		if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), "loopback of 4 ranks") {
			t.Errorf("rank %d returns %v", r, err)
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

// TestMaskedRanksAreLeftOut: every collective goes on without them, and with them when they are back.
func TestMaskedRanksAreLeftOut(t *testing.T) {
	const ranks, masked = 4, 2
	j := newJob(t, ranks)
	windows := j.alloc(t)
	variants := make([][]variant, spec.Collectives)
	for kind := AllReduce; kind < spec.Collectives; kind++ {
		variants[kind] = j.variants(t, kind)
	}
	draw := rand.New(rand.NewPCG(5, 6))
	for round := range 3 {
		live := []int{0, 1, 3}
		if round == 1 {
			live = ranksUpTo(ranks) // the rank is back: it learns from the others' aim what it missed
		}
		eachRank(t, live, func(ctx context.Context, r int) error {
			if round == 1 {
				return j.comms[r].SetMask(ctx)
			}
			return j.comms[r].SetMask(ctx, masked)
		})
		for kind := AllReduce; kind < spec.Collectives; kind++ {
			for i, v := range variants[kind] {
				s := &shape{
					kind: kind, dtype: weft.Int32, op: weft.Avg, root: live[i%len(live)], seed: uint64(i),
					align: make([]int, ranks), window: slices.Repeat([]bool{i%2 > 0}, ranks),
					inPlace: slices.Repeat([]bool{kind != AllToAllV && i%3 > 1}, ranks),
				}
				lengths := make([][]int, ranks)
				for q := range lengths {
					for range ranks {
						lengths[q] = append(lengths[q], 1500)
						if kind.Varies() {
							lengths[q][len(lengths[q])-1] = draw.IntN(3000)
						}
					}
				}
				s.lay(lengths, i%2 > 0)
				s.check(t, j, windows, live, v)
			}
		}
		if round == 1 {
			continue
		}
		eachRank(t, live, func(ctx context.Context, r int) error {
			if err := broadcastOf(5, masked)(ctx, variants[Broadcast][0].groups[r]); !errors.Is(err, weft.ErrMasked) {
				return fmt.Errorf("broadcast from a masked rank: %v", err)
			}
			return nil
		})
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
	const ranks, times = 2, 100
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	windows := make([]*weft.Window, ranks)
	j.must(t, func(ctx context.Context, r int) (err error) {
		windows[r], err = j.comms[r].Alloc(ctx, 2<<20)
		return err
	})
	ctx := testContext(t)
	for kind := Barrier; kind < spec.Collectives; kind++ {
		for _, n := range []int{2, 1000, 100_000} {
			for _, inWindow := range []bool{false, true} {
				s := &shape{
					kind: kind, dtype: weft.Float32, op: weft.Max, align: make([]int, ranks),
					window: slices.Repeat([]bool{inWindow}, ranks), inPlace: make([]bool, ranks),
				}
				if n == 1000 {
					s.op = weft.PreMulSum
				}
				s.lay([][]int{{n, n}, {n, n}}, inWindow)
				var calls [ranks]Call
				for r := range calls {
					calls[r] = s.call(r, s.operands(r, windows[r].Bytes()))
				}
				call := func(r int) {
					if err := groups[r].Do(ctx, nil, calls[r]); err != nil {
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
				if a := testing.AllocsPerRun(times, func() { call(0) }); a > 0 {
					t.Errorf("%v of %d elements, windows %t: %v allocations", kind, n, inWindow, a)
				}
				<-done
			}
		}
	}
}

// TestUnequalCounts: what a rank sends and its peer does not expect is an error of all ranks, the same
// one, and nothing moves.
func TestUnequalCounts(t *testing.T) {
	const ranks = 3
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	for _, n := range []int{1, 100_000} {
		var texts []string
		for r, err := range j.each(t, func(ctx context.Context, r int) error {
			send, recv := slices.Repeat([]int{n}, ranks), slices.Repeat([]int{n}, ranks)
			if r == 2 {
				send[1] = 7
			}
			in, out := slices.Repeat([]int32{1}, ranks*(n+7)), make([]int32, ranks*n)
			err := groups[r].AllToAllV(ctx, nil, weft.TensorOf(out), weft.TensorOf(in), Counts{Send: send, Recv: recv})
			if slices.Max(out) != 0 {
				return fmt.Errorf("something moved, and %w", err)
			}
			return err
		}) {
			if !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(),
				fmt.Sprintf("rank 2 sends 7 elements to rank 1, which receives %d", n)) {
				t.Errorf("rank %d returns %v", r, err)
			} else {
				texts = append(texts, err.Error())
			}
		}
		if len(slices.Compact(texts)) != 1 {
			t.Errorf("ranks disagree: %q", texts)
		}
		// Counts that all ranks must pass alike.
		for r, err := range j.each(t, func(ctx context.Context, r int) error {
			counts := []int{n, n, n}
			counts[(r+2)/2] += r / 2 // of rank 2, on rank 2
			in, out := make([]int32, counts[r]), make([]int32, 3*n+1)
			return groups[r].AllGatherV(ctx, nil, weft.TensorOf(out), weft.TensorOf(in), counts, nil)
		}) {
			want := fmt.Sprintf("all-gather-v: ranks disagree on the count of rank 2, in elements: %d on rank 2, "+
				"%d on ranks 0-1", n+1, n)
			if !errors.Is(err, weft.ErrMismatch) || err.Error() != want {
				t.Errorf("rank %d returns %v, want %s", r, err, want)
			}
		}
		for r, err := range j.each(t, func(ctx context.Context, r int) error {
			in, out := make([]int32, 3*n+1), make([]int32, n)
			return groups[r].Do(ctx, nil, Call{
				Collective: ReduceScatterV, Out: weft.TensorOf(out), In: weft.TensorOf(in),
				Counts: Counts{Send: []int{n, n, n}, SendAt: []int{0, n, 2*n + r/2}},
			})
		}) {
			want := fmt.Sprintf("reduce-scatter-v: ranks disagree on where rank 2's part begins, in elements: %d on rank 2, "+
				"%d on ranks 0-1", 2*n+1, 2*n)
			if !errors.Is(err, weft.ErrMismatch) || err.Error() != want {
				t.Errorf("rank %d returns %v, want %s", r, err, want)
			}
		}
		j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
	}
}

// TestMoreThan4GiB gathers parts whose sum is more bytes than 32 bits count.
func TestMoreThan4GiB(t *testing.T) {
	if os.Getenv("WEFT_TEST_ALL") == "" {
		t.Skip("WEFT_TEST_ALL is not set: it takes 12 GiB")
	}
	const ranks, n = 2, 2<<30 + 4096
	j := newJob(t, ranks)
	groups := j.group(t, Options{})
	j.must(t, func(ctx context.Context, r int) error {
		out := make([]uint8, ranks*n)
		in := out[r*n:][:n]
		for i := 0; i < n; i += 4093 {
			in[i] = uint8(i>>12 + r)
		}
		if err := groups[r].AllGather(ctx, nil, weft.TensorOf(out), weft.TensorOf(in)); err != nil {
			return err
		}
		for q := range ranks {
			for i := 0; i < n; i += 4093 {
				if want := uint8(i>>12 + q); out[q*n+i] != want {
					return fmt.Errorf("byte %d of rank %d is %d, want %d", i, q, out[q*n+i], want)
				}
			}
		}
		return nil
	})
}

// TestLog: a logger gets a line for each algorithm that has run, on each rank, and none for what was refused.
func TestLog(t *testing.T) {
	var log struct {
		sync.Mutex
		lines []string
	}
	write := writer(func(line []byte) (int, error) {
		log.Lock()
		defer log.Unlock()
		log.lines = append(log.lines, strings.TrimSuffix(string(line), "\n"))
		return len(line), nil
	})
	j := newJob(t, 2, weft.WithLogger(slog.New(slog.NewTextHandler(write, nil))))
	groups := j.group(t, Options{})
	j.must(t, func(ctx context.Context, r int) error {
		for _, n := range []int{3, 4, 100_000, 3} {
			x := make([]float32, n)
			if err := groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum); err != nil {
				return err
			}
		}
		if err := groups[r].Broadcast(ctx, nil, weft.Absent("none"), 0); !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("a broadcast of no tensor: %w", err)
		}
		w, err := groups[r].Start(ctx, nil, Call{Collective: Barrier})
		if err != nil {
			return err
		}
		return errors.Join(w.Wait(ctx), w.Close())
	})
	closeGroups(t, groups)
	for r := range 2 {
		var got []string
		for _, line := range log.lines {
			_, line, _ := strings.Cut(line, "msg=algorithm comm=")
			if _, line, ok := strings.Cut(line, fmt.Sprintf(" rank=%d ", r)); ok {
				got = append(got, line)
			}
		}
		want := []string{
			"op=all-reduce name=all-reduce/eager bytes=12",
			"op=all-reduce name=all-reduce/pipeline bytes=400000",
			"op=barrier name=barrier/eager bytes=0",
		}
		if !slices.Equal(got, want) {
			t.Errorf("rank %d has logged\n%s\nwant\n%s", r, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestRefusalsSayWhatIsMissing: shapes that no memory has, and algorithms that do not fit.
func TestRefusalsSayWhatIsMissing(t *testing.T) {
	j := newJob(t, 2)
	groups := j.group(t, Options{})
	x := make([]float32, 4)
	shaped := func(shape ...int) weft.Tensor {
		return weft.Tensor{Data: unsafe.Pointer(&x[0]), DType: weft.Float32, Shape: shape}
	}
	for words, c := range map[string]Call{
		"negative":               {Collective: AllReduce, In: shaped(-2, -2), Out: shaped(-2, -2)},
		"more bytes than an int": {Collective: AllReduce, In: shaped(1<<32, 1<<32), Out: shaped(1<<32, 1<<32)},
		"in windows of every rank": {
			Collective: AllReduce, In: shaped(4), Out: shaped(4), Algorithm: "all-reduce/window",
		},
		`"ring" on the host; name one of all-reduce/`: {
			Collective: AllReduce, In: shaped(4), Out: shaped(4), Algorithm: "ring",
		},
	} {
		for r, err := range j.each(t, func(ctx context.Context, r int) error { return groups[r].Do(ctx, nil, c) }) {
			refused := errors.Is(err, weft.ErrInvalid) || errors.Is(err, weft.ErrUnsupported)
			if !refused || !strings.Contains(err.Error(), words) {
				t.Errorf("rank %d, want %q: %v", r, words, err)
			}
		}
	}
	for r, err := range j.each(t, func(ctx context.Context, r int) error {
		_, err := New(ctx, j.comms[r], Options{Staging: math.MaxInt})
		return err
	}) {
		if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), "it may be 0 to 68719476736") {
			t.Errorf("rank %d, all the staging memory there is: %v", r, err)
		}
	}
	if err := shaped(1<<40, 0, 1<<40).CheckShape(); err != nil {
		t.Errorf("an empty tensor: %v", err)
	}
}
