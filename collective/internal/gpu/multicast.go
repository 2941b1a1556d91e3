package gpu

import (
	"context"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
)

// Algorithms by multicast have this in their names. They were never run on a GPU: they are compiled for Hopper
// and Blackwell, and tested on emulated GPUs. Windows have multicast addresses only if WEFT_MULTICAST=1 was set
// on all ranks.
const byMulticast = "multicast"

func (a *algorithm) multicast() bool { return strings.Contains(a.Name, byMulticast) }

// multicast is the multicast address of an operand; 0: it lies in no window that has one.
func (e *Engine) multicast(t weft.Tensor) uint64 {
	w, offset, ok := e.comm.Operations().Find(t.Data, t.Bytes())
	if !ok || w.Multicast() == 0 {
		return 0
	}
	return uint64(w.Multicast().Add(offset))
}

// reached says whether every operand that lies in a window, as w says, lies in one that reaches all ranks, and no
// rank is masked: stores to a multicast address reach masked ranks, and sums have their memory.
func (e *Engine) reached(c *spec.Call, w spec.Windows) bool {
	if e.comm.Mask().Len() > 0 || !e.comm.Device().Multicast() {
		return false
	}
	return c.Bytes == 0 ||
		(w&spec.Inputs == 0 || e.multicast(c.In) != 0) && (w&spec.Outputs == 0 || e.multicast(c.Out) != 0)
}

// noMulticast says why a call cannot have the algorithm by multicast that it names.
func (e *Engine) noMulticast(name string, q *spec.Request) error {
	const or = "; name another algorithm or none"
	switch {
	case !e.comm.Device().Multicast():
		return weft.Unsupportedf("%v: %s is for windows with multicast, which are made where WEFT_MULTICAST is 1 on "+
			"all ranks when they join%s", q.Collective, name, or)
	case e.comm.Mask().Len() > 0:
		return weft.Unsupportedf("%v: %s reaches masked ranks as well%s", q.Collective, name, or)
	default:
		return weft.Unsupportedf("%v: %s is for symmetric calls whose operands lie in windows with memory of their "+
			"own, made while no rank was masked%s", q.Collective, name, or)
	}
}

// multicastOf is an algorithm by multicast. Those that reduce are relaxed, so they run where they are named.
func multicastOf(name string, k spec.Collective, w spec.Windows, us cost, run start) *algorithm {
	a := &algorithm{
		Algorithm: spec.Algorithm{
			Name: name, Collective: k, Needs: w | spec.Multicast, MaxBytes: mostWhole, Cost: us,
		},
		start: run,
	}
	if k.Reduces() {
		a.Supports = summedBySwitch
		a.Tags = map[string]string{"opt-in": "bits of its own"}
	}
	return a
}

// summedBySwitch: switches add up numbers of these types, in fp32.
func summedBySwitch(q spec.Request) bool {
	switch q.DType {
	case weft.BFloat16, weft.Float16, weft.Float32:
		return q.Op == weft.Sum
	default:
		return false
	}
}

// A link carries what a rank stores once, and what comes from the others.
func multicastMoveCost(q spec.Request, m *spec.Model) float64 {
	moved := float64(q.Bytes)
	if q.Collective == spec.AllGather {
		moved *= float64(max(q.Ranks-1, 1))
	}
	return meeting(&q, m) + spec.Micros(moved, m.Push)
}

// A link carries each rank's inputs to the switch, and results back.
func multicastReduceCost(q spec.Request, m *spec.Model) float64 {
	n := float64(max(q.Ranks, 1))
	moved := float64(q.Bytes)
	switch q.Collective {
	case spec.AllReduce:
		moved *= 1 + 1/n
	case spec.ReduceScatter: // of parts
		moved *= n
	}
	return meeting(&q, m) + spec.Micros(moved, m.Pull)
}

// In one shot the switch reads all inputs for each rank, and there is neither a fence nor a second trip.
func multicastOneShotCost(q spec.Request, m *spec.Model) float64 {
	return trip(&q, m) + m.Hop + spec.Micros(float64(q.Bytes)*float64(q.Ranks), m.Pull)
}

// prepareMulticast loads the kernel that reduces elements of a type.
func (e *Engine) prepareMulticast(ctx context.Context, op string, t weft.DType) error {
	if err := e.Prepare(ctx, op, t); err != nil || e.reductions[t].multicast != nil {
		return err
	}
	if err := e.uncaptured(op, t); err != nil {
		return err
	}
	k := &multicastReduce{}
	err := e.load(ctx, into(&k.Launch, multicastReduceSource(t, e.target()), e.config(), multicastReduceArgs{}))
	if err == nil {
		e.reductions[t].multicast = k
	}
	return err
}
