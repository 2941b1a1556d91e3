package collective

import (
	"bytes"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// AllReduce is a sweep over message sizes.
type AllReduce struct {
	Bytes     []int64
	DType, Op string
	Algorithm string // empty: the library's choice
	Heap      bool
	InPlace   bool
	timing.Effort
}

// Measure sweeps message sizes.
func Measure(h *timing.Host, a AllReduce) ([]timing.Series, error) {
	dtype, err := weft.ParseDType(a.DType)
	if err != nil {
		return nil, err
	}
	op, err := weft.ParseOp(a.Op)
	if err != nil {
		return nil, err
	}
	var all []timing.Series
	for _, n := range a.Bytes {
		s, err := a.measure(h, int(n), dtype, op)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// measure measures one message size.
func (a AllReduce) measure(h *timing.Host, n int, dtype weft.DType, op weft.Op) (timing.Series, error) {
	m, free, err := newAllReducer(h, a, n, dtype, op)
	if err != nil {
		return timing.Series{}, err
	}
	defer free()
	warmup := a.Warmup
	if warmup == 0 {
		warmup = 5
	}
	all, err := h.Time(a.Effort, timing.Rounds{
		Operations: []timing.Operation{m.operation()}, Warmup: warmup, Rehearsal: warmup,
		Checked: func(i, n int) bool { return i == n-1 || i == n/2 },
	})
	if err != nil {
		return timing.Series{}, err
	}
	all[0].Bytes = int64(n)
	return all[0], nil
}

// allReducer reduces messages of one size on one rank.
type allReducer struct {
	*timing.Host
	op      weft.Op
	in, out weft.Tensor
	input   []byte // the input
	want    []byte // the expected output
}

func newAllReducer(h *timing.Host, a AllReduce, n int, dtype weft.DType, op weft.Op) (_ *allReducer, free func(),
	_ error,
) {
	count := n / dtype.Size()
	input, want, err := summands(dtype, op, count, h.Comm.Rank(), h.Comm.Size())
	if err != nil {
		return nil, nil, err
	}
	in, freeIn, err := h.Operand(n, a.Heap)
	if err != nil {
		return nil, nil, err
	}
	m := &allReducer{Host: h, op: op, in: weft.TensorAt(in, dtype, count), input: input, want: want}
	if a.InPlace {
		m.out = m.in
		return m, freeIn, nil
	}
	out, freeOut, err := h.Operand(n, a.Heap)
	if err != nil {
		freeIn()
		return nil, nil, err
	}
	m.out = weft.TensorAt(out, dtype, count)
	return m, func() { freeOut(); freeIn() }, nil
}

// operation is an all-reduce on all ranks at once. If it is checked, its output was poisoned
// before; the meeting in front of it keeps the poison from peers that still read.
func (m *allReducer) operation() timing.Operation {
	size, ranks := float64(len(m.want)), float64(m.Comm.Size())
	return timing.Operation{
		Name: "allreduce",
		// An all-reduce moves at least this much between ranks.
		Bytes: timing.Bytes{Wire: 2 * size * (ranks - 1) / ranks},
		Renew: func(checked bool) error {
			if checked {
				timing.Poison(m.out.Raw())
				copy(m.in.Raw(), m.input)
			}
			return nil
		},
		Run: func(bool) error { return m.Group.AllReduce(m.Context, nil, m.out, m.in, m.op) },
		Check: func() error {
			wrong := !bytes.Equal(m.out.Raw(), m.want)
			if err := m.Meet(); err != nil || !wrong {
				return err
			}
			return timing.Wrongf("the result of %s is wrong", measure.Size(int64(len(m.want))))
		},
	}
}
