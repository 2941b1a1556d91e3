package synthesis_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/cost"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/spec"
	"github.com/weftgo/weft/plan/synthesis"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("WEFT_TUNING", "none"); err != nil { // not what was measured on this machine
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// element is a number of a rank's input.
func element(rank, at int) uint32 { return uint32(rank+1)*1_000_003 + uint32(at)*7919 }

// wanted is a number of a rank's output by the definition of a collective, with so many in an input.
func wanted(collective string, ranks, rank, at, in int) (v uint32) {
	switch collective {
	case spec.AllGather:
		return element(at/in, at%in)
	case spec.AllToAll:
		part := in / ranks
		return element(at/part, rank*part+at%part)
	case spec.Broadcast:
		return element(1, at)
	case spec.ReduceScatter:
		at += rank * (in / ranks)
	}
	for r := range ranks {
		v += element(r, at)
	}
	return v
}

// TestExecuted runs plans on real ranks, and compares outputs with the collective's definition.
func TestExecuted(t *testing.T) {
	tops := map[string]*cost.Topology{
		"ring": cost.Ring(4, 50, 1), "one broken link": cost.AllToAll(4, 60, 1).Without(0, 1),
		"two hosts": cost.TwoHosts(4, 60, 1, 50, 5), "two hosts by name": onHosts(4),
	}
	if all {
		tops = topologies(4)
		tops["two hosts by name"], tops["two hosts of 8 by name"] = onHosts(4), onHosts(8)
		tops["ring of 16"] = cost.Ring(16, 50, 1)
		tops["two hosts of 8"] = cost.TwoHosts(8, 60, 1, 50, 5)
		tops["one broken link of 8"] = cost.AllToAll(8, 60, 1).Without(0, 1)
	}
	for name, top := range tops {
		n := top.Ranks
		for _, c := range synthesis.Collectives {
			if n == 16 && c != spec.AllReduce {
				continue
			}
			var files []*plan.File
			for _, bytes := range []int{1 << 10, 64 << 10, 1 << 20, 256 << 20} {
				if !all && (name == "two hosts") != (bytes == 64<<10) {
					continue
				}
				f, _ := synthesize(t, synthesis.Spec{Collective: c, Topology: top, Bytes: bytes, Root: 1})
				files = append(files, f)
			}
			err := ranktest.Run(n, on(t, top), func(ctx context.Context, comm *weft.Comm) error {
				x, err := executor.New(ctx, comm, executor.Options{})
				if err != nil {
					return err
				}
				for _, f := range files {
					p, err := x.Load(ctx, f)
					if err != nil {
						return err
					}
					for _, chunk := range []int{16, 4096, 80, 0} {
						if err := execute(ctx, p, comm.Rank(), chunk); err != nil {
							return err
						}
					}
				}
				return x.Close()
			})
			if err != nil {
				t.Errorf("%s, %s: %v", name, c, err)
			}
		}
	}
}

// on has ranks be on the hosts that a topology names.
func on(t *testing.T, top *cost.Topology) func(rank int) []weft.Option {
	if len(top.Hosts) == 0 {
		return ranktest.OnHost
	}
	network := fabrictest.New(fabrictest.EFA(), 1)
	t.Cleanup(func() {
		if err := network.Check(); err != nil {
			t.Error(err)
		}
	})
	return func(rank int) []weft.Option {
		return []weft.Option{weft.WithHostID(fmt.Sprint("host ", top.Hosts[rank])), weft.WithFabric(network.Open)}
	}
}

// execute runs a plan with chunks of so many bytes.
func execute(ctx context.Context, p *executor.Plan, rank, chunk int) error {
	f := p.File()
	in, out := make([]byte, f.Ranks[rank].Input*chunk), make([]byte, f.Ranks[rank].Output*chunk)
	for i := 0; i < len(in); i += 4 {
		binary.LittleEndian.PutUint32(in[i:], element(rank, i/4))
	}
	tensor := func(b []byte) weft.Tensor { return weft.TensorAt(b, weft.Uint32, len(b)/4) }
	if err := p.Execute(ctx, nil, tensor(out), tensor(in)); err != nil {
		return err
	}
	for i := 0; i < len(out); i += 4 {
		want := wanted(f.Collective, len(f.Ranks), rank, i/4, len(in)/4)
		if got := binary.LittleEndian.Uint32(out[i:]); got != want {
			return fmt.Errorf("%s, chunks of %d bytes: number %d of rank %d is %d, want %d", f.Name, chunk, i/4, rank, got,
				want)
		}
	}
	return nil
}
