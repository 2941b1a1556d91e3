package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/internal/plantest"
)

// testGroup has plans run the calls of a group: of a plan whose sums are in rank order the bits are those of the
// library's algorithms.
func testGroup(t *testing.T, g *ranktest.GPUs) {
	const ranks = 3
	files := []*plan.File{
		build(t, plantest.Switched(ranks, true)), build(t, plantest.Gather(ranks, true)), build(t, plantest.SumsByReading()),
		build(t, plantest.Pipelined(ranks)), build(t, plantest.Broadcast(ranks, 1, false)),
	}
	run(t, g, ranks, memoryBytes, executor.Options{}, patience, func(ctx context.Context, r *rank) (err error) {
		o := collective.Options{DTypes: []weft.DType{weft.BFloat16}, SMs: 4 * ranks}
		for _, f := range files {
			a, err := executor.Algorithm(f)
			if err != nil {
				return err
			}
			o.Algorithms = append(o.Algorithms, a)
		}
		group, err := collective.New(ctx, r.comm, o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, group.Close()) }()
		for i, a := range o.Algorithms {
			for n, chunk := range []int{32, 2048, 48} {
				l := launchOf{dtype: weft.BFloat16, chunk: chunk, window: n%2 == 0}
				root := 0
				if a.Collective.Rooted() {
					root, l.window = 1, false // the others have their outputs where it has its input
				}
				var outputs [2][]byte
				for k, name := range []string{a.Name, ""} {
					out, in, want, err := r.put(files[i], l, uint64(n))
					if err != nil {
						return err
					}
					op := weft.Sum
					if len(a.Ops) > 0 {
						op = a.Ops[0]
					}
					err = group.Do(ctx, nil, collective.Call{
						Collective: a.Collective, Op: op, Root: root, In: in, Out: out, Algorithm: name,
					})
					if err == nil && k == 0 {
						err = r.check(files[i], l, out, want)
					}
					outputs[k] = make([]byte, out.Bytes())
					if err := errors.Join(err, r.comm.Device().Context().Download(outputs[k], out.Pointer())); err != nil {
						return fmt.Errorf("%q: %w", name, err)
					}
				}
				if a.Tags["opt-in"] == "" && !bytes.Equal(outputs[0], outputs[1]) {
					return fmt.Errorf("%s leaves other bits than the library's algorithm", a.Name)
				}
			}
		}
		return nil
	})
}

func TestGroupOnEmulatedGPUs(t *testing.T) { testGroup(t, emulatedKernels(t, 3, 5)) }

// TestGroupOnGPUs is the same on real ones.
func TestGroupOnGPUs(t *testing.T) { testGroup(t, ranktest.Real(t)) }
