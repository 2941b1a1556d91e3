package ep

import (
	"fmt"

	"github.com/weftgo/weft"
)

// CountWaits says where the operations that follow count for how long this rank waited for each of
// the others to begin the same operation: int64 [ranks], in nanoseconds, to which every operation
// adds, so that the rank that keeps all of them waiting can be found. It is how late the others
// are, and not how long their rows take. Operations that were captured go on to count where they
// did when they were.
//
// Prepare, Dispatch and CombineBackward, which moves rows as a dispatch does, count in dispatch;
// Combine and DispatchBackward in combine. Either may be the zero Tensor, and then is not counted,
// as at the beginning. A phase that was sent apart counts from when it is received, if it is then
// that the others are waited for. The memory is the caller's: on GPUs it is this rank's GPU's, and
// is to stay as long as operations that count there may run. The host hears the ranks in the order
// of their numbers: who comes while one before it is waited for counts as having been in time.
//
// It is no collective call: ranks may count or not as they like.
func (h *Handle) CountWaits(dispatch, combine weft.Tensor) error {
	const op = "count waits"
	if h.base.Closed {
		return fmt.Errorf("%s: handle %w", op, weft.ErrClosed)
	}
	for _, t := range []weft.Tensor{dispatch, combine} {
		if t.IsZero() {
			continue
		}
		if t.DType != weft.Int64 || len(t.Shape) != 1 || t.Shape[0] != h.base.Comm.Size() || t.Data == nil {
			return weft.Invalidf("%s: the tensor is %v, want int64[%d], a number for each rank", op, t, h.base.Comm.Size())
		}
		if uintptr(t.Data)%8 != 0 {
			return weft.Invalidf("%s: the tensor begins at %#x, want a multiple of 8 bytes", op, uintptr(t.Data))
		}
	}
	h.engine.CountWaits(dispatch, combine)
	return nil
}
