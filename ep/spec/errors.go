package spec

import (
	"fmt"

	"github.com/weftgo/weft"
)

// OverflowError says that more rows were routed to a rank, or to an expert, than Capacity. Every
// rank's Prepare returns the same one; nothing has moved. It wraps [weft.ErrUnsupported].
type OverflowError struct {
	Rank     int
	Expert   int // the expert, for the expert-major layout; else -1
	Demand   int // rows routed there, pads included
	Capacity int
}

func (e *OverflowError) Error() string {
	where := fmt.Sprintf("rank %d", e.Rank)
	if e.Expert >= 0 {
		where = fmt.Sprintf("expert %d of rank %d", e.Expert, e.Rank)
	}
	return fmt.Sprintf("prepare: %d rows routed to %s, capacity %d: raise Capacity, leave it 0 for the "+
		"worst case, or use OverflowDrop",
		e.Demand, where, e.Capacity)
}

// Unwrap returns [weft.ErrUnsupported].
func (e *OverflowError) Unwrap() error { return weft.ErrUnsupported }
