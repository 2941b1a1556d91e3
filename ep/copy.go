package ep

import (
	"context"
	"fmt"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// CopyReceived copies what a dispatch has received to memory of the caller's: the rows that exist,
// pads included, their scales, and what the Routing says of them. All else in the tensors stays as
// it was, behind an expert's last row as in the gaps of the rank-major layout. So it takes the time
// of the rows that are there, not of all places; on GPUs the count of rows, which the host need not
// know, is read from the GPU's memory by one kernel.
//
// It is local. On GPUs it is enqueued where the rows are there, in the stream of the dispatch or in
// one that waits for it, and may be captured; each replay goes by the routing of that time. With a
// nil stream it goes into the communicator's own, and CopyReceived returns when it is done. Tensors
// may overlap neither each other nor what was received; on GPUs Data begins on a multiple of 16
// bytes, Scales on one of 4. A call that is refused has written nothing.
func (h *Handle) CopyReceived(ctx context.Context, s *weft.Stream, r *Received, to spec.Copies) error {
	b := h.base
	if b.Closed {
		return fmt.Errorf("%s: handle %w", spec.OpCopy, weft.ErrClosed)
	}
	if err := b.Comm.Operations().Begin(spec.OpCopy); err != nil {
		return err
	}
	switch {
	case r == nil || r.Routing == nil || r.batch.Base != b:
		return weft.Invalidf("%s: the rows were not received by this handle, or their routing was released", spec.OpCopy)
	case r.released:
		return weft.Invalidf("%s: the rows were released; copy before that", spec.OpCopy)
	}
	a := spec.CopyArgs{Batch: r.batch, Buffer: r.buffer, Data: r.Data, Scales: r.Scales, To: to}
	if err := b.CheckCopies(&a); err != nil {
		return err
	}
	return h.engine.Copy(ctx, s, a)
}
