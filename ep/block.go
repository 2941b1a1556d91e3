package ep

import "github.com/weftgo/weft"

// blockShape is the memory of one received tensor.
type blockShape struct {
	rows     int
	scalesAt int64
	bytes    int64
}

func newBlockShape(s Spec, rows int) blockShape {
	b := blockShape{rows: rows, scalesAt: align(int64(rows) * int64(s.RowSize()))}
	b.bytes = max(64, b.scalesAt+align(int64(rows)*int64(s.ScaleSize())))
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

// strides say where the scales of received rows stand: row x number + zone x number of the zone's
// first row + word x number of the word of scales. They are the Strides of kernels/copy.cu.
type strides struct{ row, zone, word uint32 }

func scaleStrides(order ScaleOrder, words, zoneRows uint32) strides {
	if order == RowMajorScales || words == 0 {
		return strides{row: words, word: 1}
	}
	return strides{row: 1, zone: words - 1, word: zoneRows}
}
