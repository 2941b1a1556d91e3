package collective

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/collective"
)

// Measure sweeps sizes on the host.
func Measure(h *timing.Host, s Sweep) ([]timing.Series, error) {
	var all []timing.Series
	for _, n := range s.sizes() {
		one, err := s.measure(h, n)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// sizes are those to measure: a barrier has one.
func (s *Sweep) sizes() []int64 {
	if Named(s.Kind).Collective == collective.Barrier {
		return []int64{0}
	}
	return s.Bytes
}

func (s *Sweep) measure(h *timing.Host, n int64) (timing.Series, error) {
	x, err := s.newExchange(n, h.Comm.Rank(), h.Comm.Size(), false)
	if err != nil {
		return timing.Series{}, err
	}
	o, free, err := x.onHost(h, s.Heap)
	if err != nil {
		return timing.Series{}, err
	}
	defer free()
	warmup := s.Warmup
	if warmup == 0 {
		warmup = 5
	}
	all, err := h.Time(s.Effort, timing.Rounds{
		Operations: []timing.Operation{o}, Warmup: warmup, Rehearsal: warmup,
		Checked: func(i, n int) bool { return i == n-1 || i == n/2 },
	})
	if err != nil {
		return timing.Series{}, err
	}
	all[0].Collective = x.message()
	return all[0], nil
}

// onHost is the exchange on all ranks at once. If it is checked, its output was poisoned before; the
// meeting in front of it keeps the poison from peers that still read.
func (x *exchange) onHost(h *timing.Host, heap bool) (o timing.Operation, free func(), err error) {
	o = timing.Operation{
		Name: x.Name, Bytes: x.bytes(),
		Run: func(bool) error { return x.run(h.Context, h.Group, nil) },
	}
	if x.size == 0 {
		return o, func() {}, nil
	}
	in, free, err := h.Operand(x.size, heap)
	if err != nil {
		return o, nil, err
	}
	out := in
	if !x.inPlace {
		freeIn := free
		mem, freeOut, err := h.Operand(x.size, heap)
		if err != nil {
			freeIn()
			return o, nil, err
		}
		out, free = mem, func() { freeOut(); freeIn() }
	}
	var input, output []byte
	var from, to weft.Tensor
	d := x.call.DType
	if x.in != nil {
		input = in[x.inAt:][:x.in.bytes()]
		from = weft.TensorAt(input, d, len(input)/d.Size())
	}
	if x.out != nil {
		output = out[x.outAt:][:x.out.bytes()]
		to = weft.TensorAt(output, d, len(output)/d.Size())
	}
	x.operands(from, to)
	o.Renew = func(checked bool) error {
		if checked {
			timing.Poison(output)
		}
		if (checked || x.fresh) && x.in != nil {
			x.in.write(input, 0)
		}
		return nil
	}
	o.Check = func() error {
		var wrong int64
		if x.out != nil {
			wrong = x.wrongElements(output, 0)
		}
		if err := h.Meet(); err != nil {
			return err
		}
		return x.verdict(wrong)
	}
	return o, free, nil
}
