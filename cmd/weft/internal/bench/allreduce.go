package bench

import (
	"bytes"
	"fmt"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// measureAllReduce sweeps message sizes.
func (r *rank) measureAllReduce(a AllReduce) ([]Series, error) {
	dtype, err := weft.ParseDType(a.DType)
	if err != nil {
		return nil, err
	}
	op, err := weft.ParseOp(a.Op)
	if err != nil {
		return nil, err
	}
	var series []Series
	for _, n := range a.Bytes {
		s, err := r.allReduce(a, int(n), dtype, op)
		if err != nil {
			return nil, err
		}
		series = append(series, s)
	}
	return series, nil
}

// allReduce measures one message size.
func (r *rank) allReduce(a AllReduce, n int, dtype weft.DType, op weft.Op) (Series, error) {
	s := Series{
		Op: "allreduce", Bytes: int64(n),
		// An all-reduce of n bytes moves at least this much between ranks.
		Wire: 2 * float64(n) * float64(r.comm.Size()-1) / float64(r.comm.Size()),
	}
	m, free, err := r.newAllReducer(a, n, dtype, op)
	if err != nil {
		return s, err
	}
	defer free()
	warmup := a.Warmup
	if warmup == 0 {
		warmup = 5
	}
	for range warmup {
		if err := m.checked(m.reduce); err != nil {
			return s, err
		}
	}
	began := time.Now()
	for range warmup {
		if err := m.unchecked(m.reduce); err != nil {
			return s, err
		}
	}
	iterations, err := r.iterations(a.Effort, warmup, time.Since(began))
	if err != nil {
		return s, err
	}
	times := newTimings(iterations)
	timed := func() error {
		began := time.Now()
		err := m.reduce()
		times.add(time.Since(began))
		return err
	}
	for i := range iterations {
		iterate := m.unchecked
		if i == iterations-1 || i == iterations/2 {
			iterate = m.checked
		}
		if err := iterate(timed); err != nil {
			return s, err
		}
		if err := r.progress(i, iterations); err != nil {
			return s, err
		}
	}
	s.Times, s.Problem = times.pack(), m.problem
	return s, nil
}

// allReducer reduces messages of one size on one rank.
type allReducer struct {
	*rank
	op      weft.Op
	in, out weft.Tensor
	input   []byte // what goes in
	want    []byte // what must come out
	problem string
}

func (r *rank) newAllReducer(a AllReduce, n int, dtype weft.DType, op weft.Op) (_ *allReducer, free func(), _ error) {
	count := n / dtype.Size()
	input, want, err := summands(dtype, op, count, r.comm.Rank(), r.comm.Size())
	if err != nil {
		return nil, nil, err
	}
	in, freeIn, err := r.operand(n, a.Heap)
	if err != nil {
		return nil, nil, err
	}
	m := &allReducer{rank: r, op: op, in: weft.TensorAt(in, dtype, count), input: input, want: want}
	if a.InPlace {
		m.out = m.in
		return m, freeIn, nil
	}
	out, freeOut, err := r.operand(n, a.Heap)
	if err != nil {
		freeIn()
		return nil, nil, err
	}
	m.out = weft.TensorAt(out, dtype, count)
	return m, func() { freeOut(); freeIn() }, nil
}

func (m *allReducer) reduce() error { return m.group.AllReduce(m.ctx, nil, m.out, m.in, m.op) }

// unchecked calls reduce on all ranks at once.
func (m *allReducer) unchecked(reduce func() error) error {
	if err := m.barrier(); err != nil {
		return err
	}
	return reduce()
}

// checked does that with an output that was poisoned before and is compared after.
func (m *allReducer) checked(reduce func() error) error {
	fill(m.out.Raw())
	copy(m.in.Raw(), m.input)
	if err := m.unchecked(reduce); err != nil { // its barrier keeps the poison from peers that still read
		return err
	}
	if !bytes.Equal(m.out.Raw(), m.want) && m.problem == "" {
		m.problem = fmt.Sprintf("the result of %s is wrong", measure.Size(int64(len(m.want))))
	}
	return m.barrier()
}

// operand is memory for a tensor, in a window or not. Making a window is collective.
func (r *rank) operand(n int, heap bool) (mem []byte, free func(), err error) {
	if heap {
		return make([]byte, n), func() {}, nil
	}
	w, err := r.comm.Alloc(r.ctx, n)
	if err != nil {
		return nil, nil, err
	}
	return w.Bytes(), func() { _ = w.Close() }, nil
}

// fill poisons memory: no result looks like this.
func fill(mem []byte) {
	if len(mem) == 0 {
		return
	}
	mem[0] = 0xa5
	for n := 1; n < len(mem); n *= 2 {
		copy(mem[n:], mem[:n])
	}
}
