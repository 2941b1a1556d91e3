package gpu

import (
	"cmp"
	"context"
	"os"

	"github.com/weftgo/weft/collective/spec"
)

// LinesVariable is set to 1, on all ranks, where lines of 128 bytes were seen to arrive whole at other GPUs:
// TestLL128LinesArriveWholeOnGPUs. Within one GPU they do.
const LinesVariable = "WEFT_LL128"

// learn learns what this rank's GPU can do, and what all can.
func (e *Engine) learn(ctx context.Context) error {
	d := e.comm.Device().Context().Device()
	major, _, err := d.ComputeCapability()
	bus, failed := d.PCIBusID()
	e.dependent, e.bulk = major >= 9, major >= 9
	able := spec.Abilities(0)
	if e.bulk {
		able = spec.BulkCopies
	}
	if os.Getenv(LinesVariable) == "1" {
		able |= spec.Lines
	}
	notes, again := e.comm.Operations().GatherNotes(ctx, opNew, append([]byte{byte(able)}, bus...))
	e.able = able
	one := true // GPU has all ranks
	for _, n := range notes {
		if len(n) > 0 { // it is not masked
			e.able &= spec.Abilities(n[0])
			one = one && string(n[1:]) == bus
		}
	}
	if one {
		e.able |= spec.Lines
	}
	return cmp.Or(err, failed, again)
}
