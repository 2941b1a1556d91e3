package ep

import (
	"context"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// CopyReceived copies a received batch to the caller's memory: the rows that exist, pads included,
// their scales, and their routing metadata. It does not write the rest of the tensors: neither
// behind an expert's last row nor in the gaps of the rank-major layout. Its cost therefore follows
// from the rows that exist, not from the capacity. On GPUs one kernel reads the counts from the
// GPU's memory; the host need not know them.
//
// It is local. On GPUs call it in the stream of the dispatch, or in one that waits for it. It may be
// captured; each replay uses the routing of that time. With a nil stream it runs in the
// communicator's own stream, and CopyReceived returns when it is done. Tensors overlap neither each
// other nor the received batch. On GPUs Data begins on a multiple of 16 bytes, Scales on one of 4. A
// refused call has written nothing.
func (h *Handle) CopyReceived(ctx context.Context, s *weft.Stream, r *Received, to spec.Copies) error {
	b := h.base
	if err := b.Gate.Enter(spec.OpCopy); err != nil {
		return err
	}
	defer b.Gate.Leave()
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
