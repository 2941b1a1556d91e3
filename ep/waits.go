package ep

import (
	"github.com/weftgo/weft"
)

// CountWaits sets the counters of waits for later operations: int64 [ranks], in nanoseconds. Every
// operation adds, for each rank, the time that this rank waited for it to begin the same operation.
// The rank that delays all others can so be found. The counters measure how late ranks begin, not
// how long their rows take. A captured operation keeps the counters that it was captured with.
//
// Prepare, Dispatch and CombineBackward (which moves rows as a dispatch does) add to dispatch;
// Combine and DispatchBackward add to combine. Either may be the zero Tensor: then those operations
// count nothing, which is the initial state. In split phases the time counts from Receive or Wait,
// if it is that call that waits for the peers.
//
// The memory is the caller's, on GPUs in this rank's GPU. It must remain as long as operations that
// count there may run. The host waits for ranks in the order of their numbers: a rank that begins
// while the host waits for a lower one counts as in time.
//
// CountWaits is local: each rank may count or not.
func (h *Handle) CountWaits(dispatch, combine weft.Tensor) error {
	const op = "count waits"
	if err := h.base.Gate.Enter(op); err != nil {
		return err
	}
	defer h.base.Gate.Leave()
	for _, t := range []weft.Tensor{dispatch, combine} {
		if t.IsZero() {
			continue
		}
		if t.DType != weft.Int64 || len(t.Shape) != 1 || t.Shape[0] != h.base.Comm.Size() || t.Data == nil {
			return weft.Invalidf("%s: the tensor is %v, want int64[%d], one counter for each rank", op, t, h.base.Comm.Size())
		}
		if uintptr(t.Data)%8 != 0 {
			return weft.Invalidf("%s: the tensor begins at %#x, want a multiple of 8 bytes", op, uintptr(t.Data))
		}
	}
	h.engine.CountWaits(dispatch, combine)
	return nil
}
