package gpu

import (
	"iter"

	"github.com/weftgo/weft/cuda"
)

// Workspace lays out memory for kernels, as offsets from its beginning, with the initial content of
// each region. It is plain data: the memory is the [Lane]'s.
type Workspace struct {
	size   int64
	fills  []fill
	counts int // of a lane's local workspace: see NewLocal
}

// fill is a region's initial content.
type fill struct {
	at, size int64
	value    byte
}

const regionAlign = 128 // bytes: a line of an L2 cache

// Raw adds a region without initial content. It returns the region's offset, a multiple of 128
// bytes.
func (w *Workspace) Raw(size int64) int64 {
	at := w.size
	w.size += (size + regionAlign - 1) &^ (regionAlign - 1)
	return at
}

// Ones adds a region of ones: values that are their own flags and have not arrived.
func (w *Workspace) Ones(size int64) int64 { return w.filled(size, 0xFF) }

// Zeros adds a region of zeros: of counters.
func (w *Workspace) Zeros(size int64) int64 { return w.filled(size, 0) }

func (w *Workspace) filled(size int64, value byte) int64 {
	at := w.Raw(size)
	w.fills = append(w.fills, fill{at, size, value})
	return at
}

// Size is how many bytes the regions take so far.
func (w *Workspace) Size() int64 { return w.size }

// Zeroed gives the offset and the size of each region of zeros.
func (w *Workspace) Zeroed() iter.Seq2[int64, int64] {
	return func(yield func(at, size int64) bool) {
		for _, f := range w.fills {
			if f.value == 0 && !yield(f.at, f.size) {
				return
			}
		}
	}
}

// begin enqueues the initial content of the regions.
func (w *Workspace) begin(s *cuda.Stream, base cuda.Pointer) error {
	for i := 0; i < len(w.fills); {
		// Neighbours of one value are filled at once, with the bytes between them that align them.
		from, value, end := w.fills[i].at, w.fills[i].value, int64(0)
		for i < len(w.fills) && w.fills[i].value == value && (end == 0 || w.fills[i].at-end < regionAlign) {
			end = w.fills[i].at + w.fills[i].size
			i++
		}
		if err := s.Memset(base.Add(int(from)), value, int(end-from)); err != nil {
			return err
		}
	}
	return nil
}
