package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
	"github.com/weftgo/weft/plan/spec"
)

func build(t testing.TB, p *plan.Plan) *plan.File {
	t.Helper()
	f, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// groupOf makes a group with plans among its algorithms.
func groupOf(ctx context.Context, c *weft.Comm, o collective.Options, files ...*plan.File) (*collective.Group, error) {
	for _, f := range files {
		a, err := executor.Algorithm(f)
		if err != nil {
			return nil, err
		}
		o.Algorithms = append(o.Algorithms, a)
	}
	return collective.New(ctx, c, o)
}

// TestAlgorithms has plans run the calls of a group, with the bits of the library's algorithms where the verifier says
// so.
func TestAlgorithms(t *testing.T) {
	files := map[collective.Collective]*plan.File{
		collective.AllReduce:     build(t, plantest.Switched(3, true)),
		collective.AllGather:     build(t, plantest.Gather(3, true)),
		collective.ReduceScatter: build(t, plantest.SumsByReading()),
		collective.AllToAll:      build(t, plantest.Pipelined(3)),
	}
	err := ranktest.Run(3, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		all := []*plan.File{
			files[collective.AllReduce], files[collective.AllGather], files[collective.ReduceScatter],
			files[collective.AllToAll],
		}
		g, err := groupOf(ctx, c, collective.Options{}, all...)
		if err != nil {
			return err
		}
		w, err := c.Alloc(ctx, 1<<20)
		if err != nil {
			return err
		}
		for kind := range collective.Broadcast {
			f := files[kind]
			if f == nil {
				continue
			}
			for _, windows := range []bool{true, false} {
				for _, chunk := range []int{16, 48, 4096} {
					if err := compare(ctx, c, g, kind, f, chunk, w, windows, ""); err != nil {
						return fmt.Errorf("%v, chunk %d, windows %t: %w", kind, chunk, windows, err)
					}
				}
			}
		}
		return g.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// compare runs a call by a plan and by the library, and compares outputs.
func compare(ctx context.Context, c *weft.Comm, g *collective.Group, kind collective.Collective, f *plan.File,
	chunk int, w *weft.Window, windows bool, native string,
) error {
	call := collective.Call{Collective: kind}
	if kind == collective.ReduceScatter {
		call.Op = weft.Min
	}
	in, out, size := f.Place(c.Rank(), chunk)
	var results [2][]byte
	for i, name := range []string{kind.String() + "/plan/" + strings.ReplaceAll(f.Name, " ", "-"), native} {
		region := make([]byte, size)
		if windows {
			region = w.Bytes()[:size]
		}
		o := plantest.NewOracle(f, weft.BFloat16, chunk)
		o.Fill(uint64(chunk))
		ins, outs := region[in:][:f.Ranks[c.Rank()].Input*chunk], region[out:][:f.Ranks[c.Rank()].Output*chunk]
		copy(ins, o.Buffer(c.Rank(), spec.Input))
		call.In, call.Out, call.Algorithm = tensor(ins, weft.BFloat16), tensor(outs, weft.BFloat16), name
		if err := g.Do(ctx, nil, call); err != nil {
			return err
		}
		if name != "" && g.Algorithm() != name {
			return fmt.Errorf("%s ran, want %s", g.Algorithm(), name)
		}
		results[i] = bytes.Clone(outs)
	}
	if !bytes.Equal(results[0], results[1]) {
		return errors.New("the library's algorithm gives other bits")
	}
	return nil
}

// TestAlgorithms_broadcast has plans broadcast for groups: from their root alone, whose input may be its output.
func TestAlgorithms_broadcast(t *testing.T) {
	const root = 1
	for _, reads := range []bool{false, true} {
		f := build(t, plantest.Broadcast(3, root, reads))
		err := ranktest.Run(3, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
			g, err := groupOf(ctx, c, collective.Options{}, f)
			if err != nil {
				return err
			}
			w, err := c.Alloc(ctx, 1<<16)
			if err != nil {
				return err
			}
			memory := [][]byte{make([]byte, 1<<16), w.Bytes()}
			for i, bytes := range []int{16, 48, 4096, 0} {
				for k := range 4 {
					in, out := memory[k/2][:bytes], memory[k/2][8192:][:bytes]
					if k%2 == 1 {
						in = out
					}
					call := collective.Call{
						Collective: collective.Broadcast, Root: root, Out: tensor(out, weft.Uint8),
						Algorithm: "broadcast/plan/broadcast",
					}
					for at := range out {
						out[at] = 0
					}
					if c.Rank() == root {
						call.In = tensor(in, weft.Uint8)
						for at := range in {
							in[at] = byte(at*7 + i + k)
						}
					}
					if err := g.Do(ctx, nil, call); err != nil {
						return err
					}
					for at := range out {
						if out[at] != byte(at*7+i+k) {
							return fmt.Errorf("%d bytes, call %d: byte %d of rank %d is wrong", bytes, k, at, c.Rank())
						}
					}
				}
			}
			out := tensor(memory[0][:16], weft.Uint8)
			call := collective.Call{
				Collective: collective.Broadcast, In: out, Out: out, Algorithm: "broadcast/plan/broadcast",
			}
			if err := g.Do(ctx, nil, call); !errors.Is(err, weft.ErrUnsupported) {
				return fmt.Errorf("another root: %v", err)
			}
			return g.Close()
		})
		if err != nil {
			t.Errorf("reads %t: %v", reads, err)
		}
	}
	// Its output holds something else before the input is sent.
	p := plan.New("overwritten", plan.Broadcast(2, 0, 2), plan.Options{})
	out, in := p.Rank(0).Output(), p.Rank(0).Input()
	p.Rank(0).Block(0).Copy(out.Chunk(0, 1), in.Chunk(1, 1))
	p.Rank(0).Block(0).Copy(out.Chunk(0, 2), in.Chunk(0, 2))
	here, there := p.Memory(0, 1), p.Memory(1, 0)
	p.Rank(1).Block(0).Signal(there)
	p.Rank(0).Block(0).Wait(here)
	p.Rank(0).Block(0).Put(here, p.Rank(1).Output().Chunk(0, 2), in.Chunk(0, 2))
	p.Rank(0).Block(0).Signal(here)
	p.Rank(1).Block(0).Wait(there)
	_, err := executor.Algorithm(build(t, p))
	if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "a root may have its input in its output") {
		t.Errorf("a plan that overwrites its input: %v", err)
	}
}

// TestAlgorithms_refusals has calls that a plan is not for refused on all ranks, with the group going on.
func TestAlgorithms_refusals(t *testing.T) {
	f, apart := build(t, plantest.Gather(2, true)), build(t, plantest.Gather(2, false))
	f.MaxBytes, apart.Name = 128, "apart"
	err := ranktest.Run(2, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		g, err := groupOf(ctx, c, collective.Options{}, f, apart)
		if err != nil {
			return err
		}
		out := make([]byte, 256)
		for _, x := range []struct {
			what    string
			bytes   int
			inPlace bool
			why     string
		}{
			{"length", 24, true, "takes inputs of a multiple of 16 bytes, 16 for each chunk"},
			{"bounds", 128, true, "outputs of 0 to 128 bytes"},
			{"placement", 16, false, "takes outputs that are inputs alone"},
			{"mixed placement", 16, c.Rank() == 0, "on all ranks, or on none"},
		} {
			in := make([]byte, x.bytes)
			if x.inPlace {
				in = out[c.Rank()*x.bytes:][:x.bytes]
			}
			err := g.Do(ctx, nil, collective.Call{
				Collective: collective.AllGather, Algorithm: "all-gather/plan/gather", In: tensor(in, weft.Uint8),
				Out: tensor(out[:2*x.bytes], weft.Uint8),
			})
			if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), x.why) {
				return fmt.Errorf("%s: %v", x.what, err)
			}
		}
		// Operands of none have no place.
		for _, n := range []string{"all-gather/plan/gather", "all-gather/plan/apart"} {
			none := tensor(out[:0], weft.Uint8)
			call := collective.Call{Collective: collective.AllGather, Algorithm: n, In: none, Out: none}
			if err := g.Do(ctx, nil, call); err != nil {
				return err
			}
		}
		in := out[c.Rank()*16:][:16]
		in[0] = byte(1 + c.Rank())
		if err := g.AllGather(ctx, nil, tensor(out[:32], weft.Uint8), tensor(in, weft.Uint8)); err != nil {
			return err
		}
		if out[0] != 1 || out[16] != 2 {
			return fmt.Errorf("the group's next call: %v", out[:32])
		}
		return g.Close()
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := executor.Algorithm(nil); !errors.Is(err, weft.ErrInvalid) {
		t.Errorf("no plan: %v", err)
	}
	for name, p := range map[string]*plan.Plan{
		"collective": plantest.Sends(2, 0), "errors": unready(),
	} {
		_, err := executor.Algorithm(build(t, p))
		if !errors.Is(err, weft.ErrUnsupported) && !errors.Is(err, weft.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAlgorithms_selected has selectors find plans among the algorithms that fit a call: those written for operands in
// place where it is in place, and the others where it is not.
func TestAlgorithms_selected(t *testing.T) {
	const ranks = 3
	own, apart := build(t, plantest.TwoShot(ranks)), build(t, plantest.TwoShotApart(ranks))
	own.Name, apart.Name = "own", "apart"
	prefix := "all-reduce/plan/"
	err := ranktest.Run(ranks, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		var found []string
		g, err := groupOf(ctx, c, collective.Options{
			Select: func(_ collective.Request, fit []collective.Algorithm) (name string) {
				found = found[:0]
				for _, a := range fit {
					if strings.HasPrefix(a.Name, prefix) {
						name = a.Name
						found = append(found, a.Name)
					}
				}
				return name
			},
		}, own, apart)
		if err != nil {
			return err
		}
		w, err := c.Alloc(ctx, 1<<12)
		if err != nil {
			return err
		}
		for i, memory := range [][]byte{make([]byte, 1<<12), w.Bytes()} {
			for k, want := range [][]string{{prefix + "own"}, {prefix + "apart"}} {
				in, out := tensor(memory[:96], weft.Float32), tensor(memory[96*k:][:96], weft.Float32)
				if err := g.AllReduce(ctx, nil, out, in, weft.Sum); err != nil {
					return err
				}
				if !slices.Equal(found, want) || g.Algorithm() != want[0] {
					return fmt.Errorf("memory %d, call %d: of %q %s ran, want %q", i, k, found, g.Algorithm(), want)
				}
			}
			// Ranks choose different ones, which none of them runs.
			at := 96 * min(c.Rank(), 1)
			in, out := tensor(memory[:96], weft.Float32), tensor(memory[at:][:96], weft.Float32)
			if err := g.AllReduce(ctx, nil, out, in, weft.Sum); !errors.Is(err, weft.ErrMismatch) {
				return fmt.Errorf("some in place: %v", err)
			}
		}
		return g.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAlgorithms_worlds has a group take plans for other numbers of ranks, which none of its calls is for: not when so
// many of its ranks take part, either.
func TestAlgorithms_worlds(t *testing.T) {
	const ranks = 3
	var files []*plan.File
	for n := 2; n <= ranks+1; n++ {
		f := build(t, plantest.Gather(n, true))
		f.Name = fmt.Sprintf("gather-%d", n)
		files = append(files, f)
	}
	err := ranktest.Run(ranks, ranktest.OnHost, func(ctx context.Context, c *weft.Comm) error {
		force := []string{"all-gather/plan/gather-2", "all-gather/plan/gather-4", "all-gather/plan/gather-3"}
		g, err := groupOf(ctx, c, collective.Options{Force: force}, files...)
		if err != nil {
			return err
		}
		out := make([]byte, 16*ranks)
		call := collective.Call{
			Collective: collective.AllGather, In: tensor(out[16*c.Rank():][:16], weft.Uint8), Out: tensor(out, weft.Uint8),
		}
		if err := g.Do(ctx, nil, call); err != nil || g.Algorithm() != "all-gather/plan/gather-3" {
			return fmt.Errorf("%s ran: %w", g.Algorithm(), err)
		}
		call.Algorithm = "all-gather/plan/gather-4"
		err = g.Do(ctx, nil, call)
		if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "another number of ranks") {
			return fmt.Errorf("a plan of four ranks, by name: %v", err)
		}
		if c.Rank() == ranks-1 {
			return g.Close()
		}
		if err := c.SetMask(ctx, ranks-1); err != nil {
			return err
		}
		call.Algorithm = "all-gather/plan/gather-2"
		err = g.Do(ctx, nil, call)
		if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "is for a communicator of 2 ranks") {
			return fmt.Errorf("a plan of two ranks, by name, with a rank masked: %v", err)
		}
		call.Algorithm = ""
		if err := g.Do(ctx, nil, call); err != nil || strings.Contains(g.Algorithm(), "plan") {
			return fmt.Errorf("with a rank masked %s ran: %w", g.Algorithm(), err)
		}
		return g.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// unready is an all-gather that does not wait for its end.
func unready() *plan.Plan {
	p := plan.New("unready", plan.AllGather(2, 1), plan.Options{})
	c := plantest.Ends(p, 2, p.Memory)
	for r := range 2 {
		b, in := p.Rank(r).Block(0), p.Rank(r).Input().Chunk(0, 1)
		b.Signal(c[r][1-r])
		b.Wait(c[r][1-r])
		b.Copy(p.Rank(r).Output().Chunk(r, 1), in)
		b.Put(c[r][1-r], p.Rank(1-r).Output().Chunk(r, 1), in)
	}
	return p
}
