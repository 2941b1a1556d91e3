package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/weftgo/weft"
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

func (r *rank) allReduce(a AllReduce, n int, dtype weft.DType, op weft.Op) (Series, error) {
	count := n / dtype.Size()
	in, freeIn, err := r.operand(count*dtype.Size(), a.Heap)
	if err != nil {
		return Series{}, err
	}
	defer freeIn()
	out, freeOut, err := r.operand(count*dtype.Size(), a.Heap)
	if err != nil {
		return Series{}, err
	}
	defer freeOut()
	input, want, err := summands(dtype, op, count, r.comm.Rank(), r.comm.Size())
	if err != nil {
		return Series{}, err
	}
	if a.InPlace {
		out = in
	}
	tin, tout := weft.TensorAt(in, dtype, count), weft.TensorAt(out, dtype, count)
	s := Series{
		Op: "allreduce", Bytes: int64(count * dtype.Size()),
		// An all-reduce of n bytes moves at least this much between ranks.
		Wire: 2 * float64(count*dtype.Size()) * float64(r.comm.Size()-1) / float64(r.comm.Size()),
	}
	checked := func(call func() error) error {
		fill(out)
		copy(in, input)
		if err := r.barrier(); err != nil { // poisoning must not race with a peer's reading
			return err
		}
		if err := call(); err != nil {
			return err
		}
		if !bytes.Equal(out, want) && s.Problem == "" {
			s.Problem = fmt.Sprintf("%d bytes: the sum is wrong", len(out))
		}
		return r.barrier()
	}
	plain := func() error { return r.group.AllReduce(r.ctx, nil, tout, tin, op) }

	warmup := a.Warmup
	if warmup == 0 {
		warmup = 5
	}
	for range warmup {
		if err := checked(plain); err != nil {
			return s, err
		}
	}
	began := time.Now()
	for range warmup {
		if err := r.barrier(); err != nil {
			return s, err
		}
		if err := plain(); err != nil {
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
		err := r.group.AllReduce(r.ctx, nil, tout, tin, op)
		times.add(time.Since(began))
		return err
	}
	for i := range iterations {
		if i == iterations-1 || i == iterations/2 {
			if err := checked(timed); err != nil {
				return s, err
			}
			continue
		}
		if err := r.barrier(); err != nil {
			return s, err
		}
		if err := timed(); err != nil {
			return s, err
		}
		if err := r.progress(i, iterations); err != nil {
			return s, err
		}
	}
	s.Times = times.pack()
	return s, nil
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

// summands makes one rank's input and the result of all ranks'. The numbers are so
// small that every type holds every partial result exactly, in any order.
func summands(dtype weft.DType, op weft.Op, count, rank, size int) (in, want []byte, err error) {
	period := 7 * size // a cycle of inputs and results
	value := func(rank, i int) float64 { return float64((i + rank) % 3) }
	result := func(i int) float64 {
		var sum, low, high float64
		low = 3
		for r := range size {
			v := value(r, i)
			sum, low, high = sum+v, min(low, v), max(high, v)
		}
		switch op {
		case weft.Min:
			return low
		case weft.Max:
			return high
		}
		return sum
	}
	switch op {
	case weft.Prod: // one rank brings a 2
		value = func(rank, i int) float64 { return 1 + float64(b2i(i%size == rank)) }
		result = func(int) float64 { return 2 }
	case weft.Avg: // all bring the same
		value = func(_, i int) float64 { return float64(i % 7) }
		result = func(i int) float64 { return float64(i % 7) }
	}
	period *= 3
	var a, b []byte
	for i := range min(period, count) {
		if a, err = appendNumber(a, dtype, value(rank, i)); err != nil {
			return nil, nil, err
		}
		if b, err = appendNumber(b, dtype, result(i)); err != nil {
			return nil, nil, err
		}
	}
	return repeat(a, count*dtype.Size()), repeat(b, count*dtype.Size()), nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func repeat(unit []byte, n int) []byte {
	out := make([]byte, n)
	for i := 0; i < n; {
		i += copy(out[i:], unit)
	}
	return out
}

func appendNumber(b []byte, d weft.DType, v float64) ([]byte, error) {
	switch d {
	case weft.BFloat16, weft.Float16, weft.Float32:
		return appendFloat(b, d, float32(v))
	case weft.Float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(v)), nil
	case weft.Int8, weft.Uint8:
		return append(b, byte(v)), nil
	case weft.Int16, weft.Uint16:
		return binary.LittleEndian.AppendUint16(b, uint16(v)), nil
	case weft.Int32, weft.Uint32:
		return binary.LittleEndian.AppendUint32(b, uint32(v)), nil
	case weft.Int64, weft.Uint64:
		return binary.LittleEndian.AppendUint64(b, uint64(v)), nil
	}
	return nil, fmt.Errorf("%v messages are not measured; take bf16, fp16, fp32, fp64 or an integer", d)
}
