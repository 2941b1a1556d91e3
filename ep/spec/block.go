package spec

import "github.com/weftgo/weft"

// BlockShape is the memory of one received tensor.
type BlockShape struct {
	Rows     int
	ScalesAt int64
	Bytes    int64
}

func NewBlockShape(s Spec, rows int) BlockShape {
	b := BlockShape{Rows: rows, ScalesAt: AlignUp(int64(rows) * int64(s.RowSize()))}
	b.Bytes = max(64, b.ScalesAt+AlignUp(int64(rows)*int64(s.ScaleSize())))
	return b
}

// ScaleShape is the type of received scales and their last two dimensions, for a payload that has
// scales and the given number of rows.
func (s *Spec) ScaleShape(rows int, order ScaleOrder) (d weft.DType, above, across int) {
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

// Strides locate the scales of received rows: the index of a word of scales is Row x row + Zone x
// first row of the zone + Word x number of the word. They are the Strides of copy.cu.
type Strides struct{ Row, Zone, Word uint32 }

func ScaleStrides(order ScaleOrder, words, zoneRows uint32) Strides {
	if order == RowMajorScales || words == 0 {
		return Strides{Row: words, Word: 1}
	}
	return Strides{Row: 1, Zone: words - 1, Word: zoneRows}
}
