package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/ranktest"
)

// A matrix of counts says how many elements rank p sends rank q: m[p][q].
type matrix [][]int

// counts are a rank's row and column, with a gap of one element before each part.
func (m matrix) counts(me int) (c Counts) {
	in, out := 0, 0
	for r := range m {
		in, out = in+1, out+1
		c.Send, c.SendAt = append(c.Send, m[me][r]), append(c.SendAt, in)
		c.Recv, c.RecvAt = append(c.Recv, m[r][me]), append(c.RecvAt, out)
		in, out = in+m[me][r], out+m[r][me]
	}
	return c
}

// Where device counts, inputs and outputs lie in a rank's memory.
const (
	countsAt = 1 << 10
	inputAt  = 4 << 10
	outputAt = 2 << 20
)

// putCounts uploads counts, and gives their tensors.
func (r *gpuRank) putCounts(c Counts) (d DeviceCounts, err error) {
	at := countsAt
	for i, t := range []*weft.Tensor{&d.Send, &d.SendAt, &d.Recv, &d.RecvAt} {
		var raw []byte
		counts := [][]int{c.Send, c.SendAt, c.Recv, c.RecvAt}[i]
		for _, n := range counts {
			raw = binary.LittleEndian.AppendUint64(raw, uint64(n))
		}
		*t = r.tensorOf(at, weft.Int64, len(counts))
		err = errors.Join(err, r.comm.Device().Context().Upload(r.memory.Pointer().Add(at), raw))
		at += len(raw)
	}
	return d, err
}

// TestUntypedOnEmulatedGPUs: operands of no elements need no type.
func TestUntypedOnEmulatedGPUs(t *testing.T) {
	onGPUs(t, emulatedGPUs(t, 2), 2, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context, r *gpuRank) error {
		none, zeros := weft.Tensor{Shape: []int{0}}, []int{0, 0}
		var errs []error
		for kind := range spec.Collectives {
			c := Call{Collective: kind, In: none, Out: none, Counts: Counts{Send: zeros, Recv: zeros}}
			if !kind.Reduces() {
				errs = append(errs, r.Do(ctx, nil, c))
			}
		}
		errs = append(errs, r.Batch(ctx, nil, func(b *Batch) error {
			b.Send(none, 1-r.comm.Rank())
			b.Recv(none, 1-r.comm.Rank())
			return nil
		}))
		return errors.Join(errs...)
	})
}

// Elements are int32: where they come from and go to.
func element(from, to, i int) uint32 { return uint32(from<<28 | to<<24 | i) }

// fill gives the input the elements of a matrix, and clears the output.
func (r *gpuRank) fill(m matrix) (in, out weft.Tensor, err error) {
	me, c := r.comm.Rank(), m.counts(r.comm.Rank())
	var raw []byte
	for to, n := range c.Send {
		raw = binary.LittleEndian.AppendUint32(raw, 0) // the gap
		for i := range n {
			raw = binary.LittleEndian.AppendUint32(raw, element(me, to, i))
		}
	}
	last := len(m) - 1
	in, out = r.tensorOf(inputAt, weft.Int32, len(raw)/4), r.tensorOf(outputAt, weft.Int32, c.RecvAt[last]+c.Recv[last])
	d, base := r.comm.Device().Context(), r.memory.Pointer()
	empty := make([]byte, out.Bytes()+64)
	return in, out, errors.Join(d.Upload(base.Add(inputAt), raw), d.Upload(base.Add(outputAt), empty))
}

// received compares the output, and what stands between and behind its parts.
func (r *gpuRank) received(m matrix) error {
	me, c := r.comm.Rank(), m.counts(r.comm.Rank())
	last := len(m) - 1
	got := make([]byte, 4*(c.RecvAt[last]+c.Recv[last])+64)
	if err := r.comm.Device().Context().Download(got, r.memory.Pointer().Add(outputAt)); err != nil {
		return err
	}
	at := 0
	word := func(want uint32) error {
		if w := binary.LittleEndian.Uint32(got[at:]); w != want {
			return fmt.Errorf("word %d is %#x, want %#x", at/4, w, want)
		}
		at += 4
		return nil
	}
	for from, n := range c.Recv {
		if err := word(0); err != nil {
			return err
		}
		for i := range n {
			if err := word(element(from, me, i)); err != nil {
				return err
			}
		}
	}
	for at < len(got) {
		if err := word(0); err != nil {
			return err
		}
	}
	return nil
}

// matrices of counts for ranks: none, one pair alone, parts of many rounds, all kinds.
func matrices(ranks int) (all []matrix) {
	of := func(f func(p, q int) int) {
		m := make(matrix, ranks)
		for p := range m {
			for q := range m {
				m[p] = append(m[p], f(p, q))
			}
		}
		all = append(all, m)
	}
	of(func(int, int) int { return 0 })
	for _, n := range []int{1, 20_000} {
		of(func(p, q int) int {
			if p == 0 && q == ranks-1 {
				return n
			}
			return 0
		})
	}
	of(func(p, q int) int { return 2500 * (q - p) * (q - p) })
	of(func(p, q int) int { return (p*7 + q*5) % 4 * 333 })
	return all
}

// allToAllsV makes calls with counts of the host, of the GPU, and captured ones with counts that change
// from launch to launch.
func allToAllsV(ctx context.Context, r *gpuRank) error {
	all := matrices(r.comm.Size())
	for round := range 3 {
		for i, m := range all {
			in, out, err := r.fill(m)
			if err != nil {
				return err
			}
			c := m.counts(r.comm.Rank())
			if round == 1 {
				err = r.AllToAllV(ctx, nil, out, in, c)
			} else {
				var d DeviceCounts
				if d, err = r.putCounts(c); err == nil {
					err = r.AllToAllVDevice(ctx, nil, out, in, d)
				}
			}
			if err = errors.Join(err, r.comm.Wait(ctx, nil)); err == nil {
				err = r.received(m)
			}
			if err != nil {
				return fmt.Errorf("round %d, matrix %d: %w", round, i, err)
			}
		}
	}
	d, err := r.putCounts(all[0].counts(r.comm.Rank()))
	if err != nil {
		return err
	}
	// The operands of a captured call are as large as the largest counts need.
	in, out := r.tensorOf(inputAt, weft.Int32, 400_000), r.tensorOf(outputAt, weft.Int32, 400_000)
	return r.capture(func(s *weft.Stream) error { return r.AllToAllVDevice(ctx, s, out, in, d) },
		func(s *cuda.Stream, g *cuda.GraphExec) error {
			for i, m := range all {
				_, _, err := r.fill(m)
				if err == nil {
					_, err = r.putCounts(m.counts(r.comm.Rank()))
				}
				if err = errors.Join(err, g.Launch(s), r.comm.Wait(ctx, weft.StreamOf(s))); err == nil {
					err = r.received(m)
				}
				if err != nil {
					return fmt.Errorf("graph, matrix %d: %w", i, err)
				}
			}
			return nil
		})
}

// TestAllToAllVOnEmulatedGPUs: counts of zeros but one pair, parts of many rounds, counts of the GPU.
func TestAllToAllVOnEmulatedGPUs(t *testing.T) {
	for _, ranks := range []int{2, 3} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onGPUs(t, emulatedKernels(t, ranks), ranks, Options{Staging: gpuStaging, SMs: 4}, allToAllsV)
		})
	}
}

// TestAllToAllVOnGPUs is the same on real ones.
func TestAllToAllVOnGPUs(t *testing.T) {
	g := ranktest.Real(t)
	for _, ranks := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			onGPUs(t, g, ranks, Options{Staging: 4 * gpuStaging, SMs: 4}, allToAllsV)
		})
	}
}

// TestCountsThatDifferOnEmulatedGPUs: both ranks of a pair whose counts do not match say so; so does a rank
// whose counts on the GPU do not fit its operands.
func TestCountsThatDifferOnEmulatedGPUs(t *testing.T) {
	for _, test := range []struct {
		name  string
		alter func(rank int, c *Counts) // of two ranks
		words [2]string
	}{
		{"fewer are sent", func(rank int, c *Counts) {
			if rank == 0 {
				c.Send[1] = 90
			}
		}, [2]string{
			"it expects 100 elements of this rank, which sends 90",
			"it sends 90 elements to this rank, which expects 100",
		}},
		{"many more are sent", func(rank int, c *Counts) {
			if rank == 0 {
				c.Send[1] = 40_000
			}
		}, [2]string{"which sends 40000", "it sends 40000 elements"}},
		{"beyond the operand", func(rank int, c *Counts) {
			if rank == 0 {
				c.RecvAt[1] = 1 << 40
			}
		}, [2]string{"its counts for rank 1 on the GPU do not fit its operands", ""}},
		{"negative", func(rank int, c *Counts) {
			if rank == 0 {
				c.Send[1] = -1
			}
		}, [2]string{"its counts for rank 1 on the GPU do not fit its operands", ""}},
	} {
		for _, onDevice := range []bool{false, true} {
			if !onDevice && (test.name == "beyond the operand" || test.name == "negative") {
				continue // refused before
			}
			t.Run(fmt.Sprintf("%s, on device %t", test.name, onDevice), func(t *testing.T) {
				g := emulatedGPUs(t, 2)
				onGPUs(t, g, 2, Options{Staging: gpuStaging, SMs: 4}, func(ctx context.Context, r *gpuRank) error {
					c := matrix{{5, 100}, {100, 5}}.counts(r.comm.Rank())
					test.alter(r.comm.Rank(), &c)
					in, out := r.tensorOf(inputAt, weft.Int32, 50_000), r.tensorOf(outputAt, weft.Int32, 50_000)
					d, err := r.putCounts(c)
					// A rank must not fail while another makes its group.
					if err := errors.Join(err, r.host.Barrier(ctx, nil)); err != nil {
						return err
					}
					if onDevice {
						err = r.AllToAllVDevice(ctx, nil, out, in, d)
					} else {
						err = r.AllToAllV(ctx, nil, out, in, c)
					}
					told := test.words[r.comm.Rank()] == "" && errors.Is(err, weft.ErrAborted) // before it has looked
					if !told && !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), test.words[r.comm.Rank()]) {
						return fmt.Errorf("%w, not %q", err, test.words[r.comm.Rank()])
					}
					return nil
				})
			})
		}
	}
}
