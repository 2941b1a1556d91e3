package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/host"
	"github.com/weftgo/weft/collective/spec"
	enginehost "github.com/weftgo/weft/engine/host"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
)

// opener opens a rank's domain.
type opener = func(context.Context, fabric.Options) (*fabric.Domain, error)

// newSpan joins goroutine ranks that are on hosts of the given names.
func newSpan(t testing.TB, names string, open opener, options ...weft.Option) (j *job, hosts []int) {
	t.Helper()
	comms, err := ranktest.JoinEach(len(names), func(rank int) []weft.Option {
		return append([]weft.Option{weft.WithHostID(names[rank:][:1]), weft.WithFabric(open)}, options...)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ranktest.Close(comms); err != nil {
			t.Error(err)
		}
	})
	for r := range comms {
		hosts = append(hosts, comms[0].Host(r))
	}
	return &job{comms: comms}, hosts
}

// twin makes a network of a class, which must have seen no mistake in the end.
func twin(t testing.TB, class fabrictest.Class, seed uint64) *fabrictest.Network {
	network := fabrictest.New(class, seed)
	t.Cleanup(func() {
		if err := network.Check(); err != nil {
			t.Error(err)
		}
	})
	return network
}

// libfabric opens domains on libfabric's tcp, or skips the test.
func libfabric(t testing.TB) opener {
	o := fabric.Options{Size: 1, Provider: "tcp", Source: "127.0.0.1"}
	if err := fabrictest.Libfabric(t.Context(), t, o).Close(); err != nil {
		t.Error(err)
	}
	return func(ctx context.Context, o fabric.Options) (*fabric.Domain, error) {
		o.Provider, o.Source = "tcp", "127.0.0.1"
		return fabric.Open(ctx, o)
	}
}

// betweenHosts says whether an algorithm is for ranks of several hosts alone.
func betweenHosts(a Algorithm) bool { return strings.Contains(a.Name, "/hierarchical") }

// layouts are ranks by the names of their hosts.
var layouts = []string{"ab", "aabb", "aabbcc", "abcd", "ababc"}

// TestHosts compares every collective between hosts with plain loops, on networks of each class and on libfabric.
func TestHosts(t *testing.T) {
	times := 1
	if os.Getenv("WEFT_TEST_ALL") != "" {
		times = 5
	}
	for i, names := range layouts {
		class := fabrictest.Classes()[i%len(fabrictest.Classes())]
		t.Run(names+" on "+class.Name, func(t *testing.T) {
			agreeOnHosts(t, names, twin(t, class, uint64(time.Now().UnixNano())).Open, times)
		})
	}
	t.Run("aabb on libfabric", func(t *testing.T) { agreeOnHosts(t, "aabb", libfabric(t), times) })
}

func agreeOnHosts(t *testing.T, names string, open opener, times int) {
	const most = 5000
	j, hosts := newSpan(t, names, open)
	windows, live := j.alloc(t), ranksUpTo(len(names))
	variants := []variant{
		{"scratch 4096", j.group(t, Options{Scratch: smallScratch})},
		{"much scratch", j.group(t, Options{})},
	}
	seed := rand.Int()
	t.Log("seed", seed)
	check := func(kind Collective, times int) {
		for range times {
			seed++
			s := rapid.Custom(func(t *rapid.T) *shape { return drawShape(t, kind, len(names), most) }).Example(seed)
			for kind.Rooted() && !slices.Contains(live, s.root) {
				s.root = (s.root + 1) % len(names)
			}
			s.hosts = hosts
			algorithms := []string{""}
			if kind.Reduces() && (s.op != weft.Avg || isFloat(s.dtype)) && len(live) == len(names) {
				algorithms = append(algorithms, kind.String()+"/hierarchical", kind.String()+"/hierarchical-exact")
			}
			for _, name := range algorithms {
				s.exact = strings.HasSuffix(name, "exact")
				v := variants[seed&1]
				v.name += " " + name
				s.checkNamed(t, j, windows, live, v, name)
			}
		}
	}
	for kind := Barrier; kind < spec.Collectives; kind++ {
		check(kind, times)
	}
	if len(names) == 2 {
		return
	}
	live = live[1:]
	for range 2 { // without rank 0, and with it again
		eachRank(t, live, func(ctx context.Context, r int) error {
			var masked []int
			if len(live) < len(names) {
				masked = []int{0}
			}
			return j.comms[r].SetMask(ctx, masked...)
		})
		for kind := Barrier; kind < spec.Collectives; kind++ {
			check(kind, 1)
		}
		live = ranksUpTo(len(names))
	}
}

// checkNamed is check by an algorithm of a name.
func (s *shape) checkNamed(t failer, j *job, windows []*weft.Window, live []int, v variant, name string) {
	t.Helper()
	all := make([]*operands, len(j.comms))
	for _, r := range live {
		all[r] = s.operands(r, windows[r].Bytes())
	}
	eachRank(t, live, func(ctx context.Context, r int) error {
		c := s.call(r, all[r])
		c.Algorithm = name
		return v.groups[r].Do(ctx, nil, c)
	})
	s.compare(t, all, live, v)
}

// TestHostMessages sends messages of many lengths between all ranks, in batches and one after the other.
func TestHostMessages(t *testing.T) {
	lengths := []int{0, 1, 40, 104, 105, 4096, 70_001}
	for i, class := range fabrictest.Classes() {
		names := layouts[i]
		t.Run(names+" on "+class.Name, func(t *testing.T) {
			exchangeOnHosts(t, names, twin(t, class, uint64(time.Now().UnixNano())).Open, lengths)
		})
	}
	t.Run("aabb on libfabric", func(t *testing.T) {
		exchangeOnHosts(t, "aabb", libfabric(t), append(lengths, 3_000_001))
	})
}

func exchangeOnHosts(t *testing.T, names string, open opener, lengths []int) {
	j, _ := newSpan(t, names, open)
	groups, size := j.group(t, Options{}), len(names)
	content := func(from, to, n int) []byte {
		b := make([]byte, n)
		for k := range b {
			b[k] = byte(k*7 + from*31 + to*5 + n)
		}
		return b
	}
	j.must(t, func(ctx context.Context, r int) error {
		in, out := map[[2]int][]byte{}, map[[2]int][]byte{}
		if err := groups[r].Batch(ctx, nil, func(b *Batch) error {
			for _, n := range lengths {
				for p := range size {
					in[[2]int{p, n}], out[[2]int{p, n}] = make([]byte, n), content(r, p, n)
					b.Send(weft.TensorOf(out[[2]int{p, n}]), p)
					b.Recv(weft.TensorOf(in[[2]int{p, n}]), p)
				}
			}
			return nil
		}); err != nil {
			return err
		}
		for what, got := range in {
			if !bytes.Equal(got, content(what[0], r, what[1])) {
				return fmt.Errorf("message of %d bytes from %d to %d differs", what[1], what[0], r)
			}
		}
		// Around a ring, one message after the other.
		next, before := (r+1)%size, (r+size-1)%size
		for _, n := range lengths {
			got := make([]byte, n)
			if r == 0 {
				if err := groups[r].Send(ctx, nil, weft.TensorOf(content(0, 1, n)), next); err != nil {
					return err
				}
			}
			if err := groups[r].Recv(ctx, nil, weft.TensorOf(got), before); err != nil {
				return err
			}
			if !bytes.Equal(got, content(0, 1, n)) {
				return fmt.Errorf("%d bytes differ on rank %d of a ring", n, r)
			}
			if r > 0 {
				if err := groups[r].Send(ctx, nil, weft.TensorOf(got), next); err != nil {
					return err
				}
			}
		}
		return nil
	})
	// Messages that differ are refused on both sides, and the group goes on.
	for r, err := range j.each(t, func(ctx context.Context, r int) error {
		switch r {
		case 0:
			return groups[0].Send(ctx, nil, weft.TensorOf(make([]byte, 8)), size-1)
		case size - 1:
			return groups[r].Recv(ctx, nil, weft.TensorOf(make([]byte, 9)), 0)
		}
		return nil
	}) {
		if other := size - 1 - r; r == 0 || r == size-1 {
			if p, ok := errors.AsType[*weft.PeerError](err); !ok || p.Rank != other || !errors.Is(err, weft.ErrMismatch) {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	}
	j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
}

// TestHostRefusals: what is wrong is refused on every rank of every host, with nothing moved.
func TestHostRefusals(t *testing.T) {
	j, _ := newSpan(t, "aab", twin(t, fabrictest.TCP(), 5).Open)
	groups := j.group(t, Options{})
	for name, c := range map[string]struct {
		call func(r int) Call
		want error
	}{
		"lengths": {func(r int) Call {
			x := weft.TensorOf(make([]int32, 5+r/2))
			return Call{Collective: AllReduce, In: x, Out: x}
		}, weft.ErrMismatch},
		"own arguments": {func(r int) Call {
			x := weft.TensorOf(make([]int32, 5))
			return Call{Collective: Broadcast, In: x, Out: x, Root: []int{0, 0, 7}[r]}
		}, weft.ErrInvalid},
		"averages of integers": {func(r int) Call {
			x := weft.TensorOf(make([]int32, 5))
			return Call{Collective: AllReduce, In: x, Out: x, Op: weft.Avg, Algorithm: "all-reduce/hierarchical"}
		}, weft.ErrUnsupported},
		"counts": {func(r int) Call {
			counts := []int{1, 1, 1}
			counts[0] += r / 2
			x := weft.TensorOf(make([]int32, 4)[:3+r/2])
			return Call{
				Collective: AllToAllV, In: x, Out: weft.TensorOf(make([]int32, 3+r/2)),
				Counts: Counts{Send: counts, Recv: counts},
			}
		}, weft.ErrMismatch},
	} {
		for r, err := range j.each(t, func(ctx context.Context, r int) error { return groups[r].Do(ctx, nil, c.call(r)) }) {
			if !errors.Is(err, c.want) || j.comms[r].Err() != nil {
				t.Errorf("%s: rank %d: %v, want %v", name, r, err, c.want)
			}
		}
		j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
	}
}

// TestHostsAbort aborts operations half-way, again and again: all ranks hear of it, and go on with right results.
func TestHostsAbort(t *testing.T) {
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			j, _ := newSpan(t, "aabb", twin(t, class, uint64(time.Now().UnixNano())).Open)
			groups := j.group(t, Options{Scratch: smallScratch})
			sum := func(ctx context.Context, r, n int) error {
				x := make([]int32, n)
				for i := range x {
					x[i] = int32(i + r)
				}
				if err := groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum); err != nil {
					return err
				}
				for i, v := range x {
					if v != int32(4*i+6) {
						return fmt.Errorf("element %d of %d is %d", i, n, v)
					}
				}
				return nil
			}
			for i := range 4 {
				for r, err := range j.each(t, func(ctx context.Context, r int) error {
					if r == i {
						time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
						j.comms[r].Abort()
						return j.comms[r].Err()
					}
					return sum(ctx, r, 100_000)
				}) {
					if p, ok := errors.AsType[*weft.PeerError](err); !ok || p.Rank != i || !errors.Is(err, weft.ErrAborted) {
						t.Errorf("rank %d: %v", r, err)
					}
				}
				j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
				j.must(t, func(ctx context.Context, r int) error { return sum(ctx, r, 3000) })
			}
		})
	}
}

// counted is a job of hosts on a network that has counted every byte when a call returns.
func counted(t *testing.T, names string) (*fabrictest.Network, *job, []int) {
	class := fabrictest.TCP()
	class.Prompt = true
	network := twin(t, class, 7)
	j, hosts := newSpan(t, names, network.Open)
	return network, j, hosts
}

// TestHostBytes counts the bytes that leave each host: what algorithms promise, and little beside.
func TestHostBytes(t *testing.T) {
	for _, names := range []string{"ab", "aabb", "aabbcc", "abcd"} {
		network, j, hosts := counted(t, names)
		groups, ranks := j.group(t, Options{}), len(names)
		count := slices.Max(hosts) + 1
		const n = 1 << 20 // of an operand, or a part
		each := ranks / count
		far := (count - 1)
		for _, c := range []struct {
			kind Collective
			name string
			want int // of each host
		}{
			{AllReduce, "", 2 * n * far / count},
			{AllReduce, "all-reduce/hierarchical-exact", (2 + 1) * n * far / count},
			{ReduceScatter, "", far * each * n},
			{AllGather, "", far * each * n},
			{AllToAll, "", each * (ranks - each) * n},
		} {
			before := make([]int, ranks)
			for r := range before {
				before[r] = network.Written(r)
			}
			j.must(t, func(ctx context.Context, r int) error {
				in, out := make([]byte, n), make([]byte, n)
				if c.kind == AllGather || c.kind == AllToAll {
					out = make([]byte, ranks*n)
				}
				if c.kind == ReduceScatter || c.kind == AllToAll {
					in = make([]byte, ranks*n)
				}
				return groups[r].Do(ctx, nil, Call{
					Collective: c.kind, Algorithm: c.name, In: weft.TensorAt(in, weft.BFloat16, len(in)/2),
					Out: weft.TensorAt(out, weft.BFloat16, len(out)/2),
				})
			})
			sent := make([]int, count)
			for r, h := range hosts {
				sent[h] += network.Written(r) - before[r]
			}
			want := c.want
			if c.name != "" && count == 2 { // partials alone
				want = 2 * n
			}
			for h, got := range sent {
				if got < want || float64(got) > 1.05*float64(want) {
					t.Errorf("%s: %v %s: host %d sends %d bytes, want %d", names, c.kind, groups[0].Algorithm(), h, got, want)
				}
			}
		}
	}
}

// TestHostBytesInAll counts the bytes that leave all hosts together, in calls to which hosts give differently.
func TestHostBytesInAll(t *testing.T) {
	for _, names := range []string{"ab", "aabb", "aabbcc", "abcd"} {
		network, j, hosts := counted(t, names)
		groups, ranks := j.group(t, Options{}), len(names)
		count := slices.Max(hosts) + 1
		const n = 1 << 20 // bytes
		tensor := func(parts int) weft.Tensor { return weft.TensorAt(make([]byte, parts*n), weft.BFloat16, parts*n/2) }
		var apart int // pairs of a sender and a receiver on different hosts
		for _, a := range hosts {
			for _, b := range hosts {
				if a != b {
					apart++
				}
			}
		}
		each := slices.Repeat([]int{n / 2}, ranks)
		for name, c := range map[string]struct {
			do   func(ctx context.Context, r int) error
			want int
		}{
			"all-to-all-v": {func(ctx context.Context, r int) error {
				return groups[r].AllToAllV(ctx, nil, tensor(ranks), tensor(ranks), Counts{Send: each, Recv: each})
			}, apart * n},
			"broadcast": {func(ctx context.Context, r int) error {
				return groups[r].Broadcast(ctx, nil, tensor(1), 0)
			}, (count - 1) * n},
			"broadcast from the last rank": {func(ctx context.Context, r int) error {
				return groups[r].Broadcast(ctx, nil, tensor(1), ranks-1)
			}, (count - 1) * n},
			"reduce": {func(ctx context.Context, r int) error {
				return groups[r].Reduce(ctx, nil, tensor(1), tensor(1), weft.Sum, 0)
			}, (count - 1) * n},
			"messages in a ring": {func(ctx context.Context, r int) error {
				return groups[r].Do(ctx, nil, Call{Collective: PointToPoint, Transfers: []Transfer{
					{Tensor: tensor(1), Peer: (r + 1) % ranks}, {Tensor: tensor(1), Peer: (r + ranks - 1) % ranks, Receive: true},
				}})
			}, count * n},
			"barrier": {func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) }, 0},
		} {
			before := 0
			for r := range ranks {
				before += network.Written(r)
			}
			j.must(t, c.do)
			got := -before
			for r := range ranks {
				got += network.Written(r)
			}
			const small = 512 // for each pair: values, signals, and notices that they have come, also of the call before
			if got < c.want || float64(got) > 1.05*float64(c.want)+float64(small*apart) {
				t.Errorf("%s: %s: the hosts send %d bytes, want %d", names, name, got, c.want)
			}
		}
	}
}

// TestHostsCut cuts the network between two ranks. All ranks have an error that names one of them at the deadline. When
// the network is whole again they go on together, and what lands late does no harm.
func TestHostsCut(t *testing.T) {
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			t.Parallel() // they wait
			network := twin(t, class, uint64(time.Now().UnixNano()))
			j, _ := newSpan(t, "aabb", network.Open, weft.WithDeadline(3*time.Second))
			groups := j.group(t, Options{Scratch: smallScratch})
			sum := func(ctx context.Context, r, n int) error {
				x := make([]int32, n)
				for i := range x {
					x[i] = int32(i + r)
				}
				err := groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum)
				for i, v := range x {
					if err == nil && v != int32(4*i+6) {
						err = fmt.Errorf("element %d of %d is %d", i, n, v)
					}
				}
				return err
			}
			j.must(t, func(ctx context.Context, r int) error { return sum(ctx, r, 5000) })
			network.Cut(1, 3)
			for r, err := range j.each(t, func(ctx context.Context, r int) error { return sum(ctx, r, 5000) }) {
				if p, ok := errors.AsType[*weft.PeerError](err); !ok || !errors.Is(err, weft.ErrTimeout) || p.Rank >= 0 &&
					p.Rank != 1 && p.Rank != 3 {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			network.Heal(1, 3)
			j.must(t, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx) })
			for n := range 20 {
				j.must(t, func(ctx context.Context, r int) error { return sum(ctx, r, 500*n) })
			}
		})
	}
}

// TestHostsReset resets the connection between two ranks: what was lost cannot be repaired, so all ranks have an error
// that names one of the two, and go on without it.
func TestHostsReset(t *testing.T) {
	for _, class := range fabrictest.Classes() {
		t.Run(class.Name, func(t *testing.T) {
			t.Parallel()
			network := twin(t, class, uint64(time.Now().UnixNano()))
			j, _ := newSpan(t, "aabb", network.Open)
			groups := j.group(t, Options{Scratch: smallScratch})
			lost := -1
			var resets sync.WaitGroup
			over := make(chan struct{})
			resets.Go(func() { // with nothing underway a reset loses nothing, so there are many
				for {
					select {
					case <-over:
						return
					case <-time.After(100 * time.Microsecond):
						network.Reset(1, 3)
					}
				}
			})
			for r, err := range j.each(t, func(ctx context.Context, r int) error {
				x := make([]int32, 1000)
				for {
					if err := groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Max); err != nil {
						return err
					}
				}
			}) {
				p, ok := errors.AsType[*weft.PeerError](err)
				if !ok || !errors.Is(err, weft.ErrDied) || p.Rank != 1 && p.Rank != 3 {
					t.Fatalf("rank %d: %v", r, err)
				}
				if r == 0 {
					lost = p.Rank
				}
			}
			close(over)
			resets.Wait()
			live := slices.DeleteFunc(ranksUpTo(4), func(r int) bool { return r == lost })
			eachRank(t, live, func(ctx context.Context, r int) error { return j.comms[r].SetMask(ctx, lost) })
			eachRank(t, live, func(ctx context.Context, r int) error {
				x := []float32{float32(r)}
				err := groups[r].AllReduce(ctx, nil, weft.TensorOf(x), weft.TensorOf(x), weft.Sum)
				if want := float32(6 - lost); err == nil && x[0] != want {
					err = fmt.Errorf("the sum is %v, not %v", x[0], want)
				}
				return err
			})
		})
	}
}

// TestAcrossHosts folds the partials of hosts, of chunks of different lengths: ranks of the same number on all hosts
// get their fold in the order of the hosts, and others nothing.
func TestAcrossHosts(t *testing.T) {
	for i, names := range []string{"aabb", "aabbcc", "aab", "abcd"} {
		class := fabrictest.Classes()[i%len(fabrictest.Classes())]
		t.Run(names+" on "+class.Name, func(t *testing.T) {
			j, hosts := newSpan(t, names, twin(t, class, uint64(time.Now().UnixNano())).Open)
			groups, ranks := j.group(t, Options{Scratch: smallScratch}), len(names)
			number := make([]int, ranks) // of a rank on its host
			least, seen := ranks, map[int]int{}
			for r, h := range hosts {
				number[r] = seen[h]
				seen[h]++
			}
			for _, n := range seen {
				least = min(least, n)
			}
			content := func(r, n int) []byte {
				b := make([]byte, n)
				random := rand.New(rand.NewPCG(uint64(r), uint64(n)))
				for k := range b {
					b[k] = byte(random.Uint32())
				}
				return b
			}
			for _, d := range []weft.DType{weft.BFloat16, weft.Float8E5M2} {
				for _, op := range []weft.Op{weft.Sum, weft.Max} {
					for _, most := range []int{64, 1000 * d.Size(), 10_000 * d.Size()} {
						length := func(r int) int { // the last chunk is shorter
							switch {
							case number[r] >= least:
								return 0
							case number[r] == least-1 && least > 1:
								return most / 3 &^ 7
							}
							return most
						}
						outs := make([][]byte, ranks)
						j.must(t, func(ctx context.Context, r int) error {
							e, n := groups[r].engine.(*host.Engine), length(r)
							outs[r] = make([]byte, n)
							c := spec.Call{
								Collective: AllReduce, Op: op, In: weft.TensorAt(content(r, n), d, n/d.Size()),
								Out: weft.TensorAt(outs[r], d, n/d.Size()),
							}
							if err := errors.Join(c.Check(r, ranks), e.Begin("all-reduce")); err != nil {
								return err
							}
							c.Whole = 1
							return e.Across(ctx, &c, most)
						})
						for r := range ranks {
							var rows [][]byte
							for p := range ranks {
								if number[p] == number[r] {
									rows = append(rows, content(p, length(p)))
								}
							}
							want := make([]byte, length(r))
							if len(want) > 0 {
								enginehost.Fold(op, d, want, rows...)
							}
							if !bytes.Equal(outs[r], want) {
								t.Fatalf("%v of %v, %d bytes at most: rank %d has other bits", op, d, most, r)
							}
						}
					}
				}
			}
			j.must(t, func(ctx context.Context, r int) error { return groups[r].Barrier(ctx, nil) })
		})
	}
}
