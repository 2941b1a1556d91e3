package ep

import "github.com/weftgo/weft"

// blockShape is the memory of one received tensor.
type blockShape struct {
	rows     int
	scalesAt int64
	bytes    int64
}

func newBlockShape(s Spec, rows int) blockShape {
	b := blockShape{rows: rows, scalesAt: align(int64(rows) * int64(s.rowBytes()))}
	b.bytes = max(64, b.scalesAt+align(int64(rows)*int64(s.scaleBytes())))
	return b
}

// scaleShape is the type of the scales of so many received rows, which have some, and their last
// two dimensions.
func (s *Spec) scaleShape(rows int, order ScaleOrder) (d weft.DType, above, across int) {
	d, across = weft.Float32, s.Hidden/ScaleBlock
	switch {
	case s.Payload == Opaque:
		d, across = weft.Uint8, s.ScaleBytes
	case s.Payload == FP8UE8M0 && order == ColumnMajorScales:
		d, across = weft.Int32, across/4
	case s.Payload == FP8UE8M0:
		d = weft.UE8M0
	}
	if order == ColumnMajorScales {
		return d, across, rows
	}
	return d, rows, across
}
