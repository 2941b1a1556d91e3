package ep

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cmd/weft/internal/bench/floats"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/closer"
)

// Gradients of a model's layer. Where combine applies the weights, CombineBackward gives their
// gradients, for which it reads the experts' rows; where the experts have applied them, they have
// their gradients too, and DispatchBackward brings those home.

// makeGradients makes the tensors of gradients. The experts' rows of them are in m.y, the tokens'
// in m.out, or for the gradient of a combine in the buffer that others read.
func (m *gpuRank) makeGradients(c *closer.Stack) (err error) {
	buffer := m.handle.GradientBuffer()
	m.numbers, m.gradOut = weft.Tensor{}, weft.Tensor{Data: buffer.Data, DType: buffer.DType, Shape: m.out.Shape}
	if m.gradRows, err = m.tensor(c, m.spec.Output, slices.Clone(m.y.Shape)...); err != nil {
		return err
	}
	m.gradWeights, err = m.tensor(c, weft.Float32, m.cfg.Tokens, m.cfg.TopK)
	if err != nil || m.spec.Weighting == ep.Weighted {
		return err
	}
	m.numbers, err = m.tensor(c, weft.Float32, m.known.Rows()*m.numbersOfRow())
	return err
}

// numbersOfRow is how many gradients of weights a row has.
func (m *expected) numbersOfRow() int {
	if m.byExpert() {
		return 1
	}
	return m.cfg.TopK
}

// combinesBackward is CombineBackward: from the gradients of the tokens' sums to those of the
// experts' rows, and of the weights.
func (m *gpuRank) combinesBackward(ctx context.Context) timing.Operation {
	var y, gradWeights weft.Tensor
	if m.spec.Weighting == ep.Weighted {
		y, gradWeights = m.y, m.gradWeights
	}
	return timing.Operation{
		Name: "combine-backward", Bytes: m.spreads(&m.batch), SMs: m.handle.GradientSMs(),
		Renew: func(bool) error {
			return errors.Join(m.writeRows(), m.uploadTokens(m.gradOut), m.spoil(m.gradRows), m.spoil(m.gradWeights))
		},
		Run: func(bool) error {
			return m.handle.CombineBackward(ctx, m.Work, ep.CombineBackwardArgs{
				Routing: m.known, GradOut: m.gradOut, Rows: y, GradRows: m.gradRows, GradWeights: gradWeights,
			})
		},
		Check: func() error {
			if m.spec.Weighting == ep.Weighted {
				if err := m.checkDots(); err != nil {
					return err
				}
			}
			return m.verdict(m.checkGradRows())
		},
	}
}

// dispatchesBackward is DispatchBackward: from the gradients of received rows, and of the weights
// that came with them, to those of the tokens' rows and weights.
func (m *gpuRank) dispatchesBackward(ctx context.Context, bytes timing.Bytes) timing.Operation {
	const name = "dispatch-backward"
	_, sms := m.handle.SMs()
	var gradWeights weft.Tensor
	if !m.numbers.IsZero() {
		gradWeights = m.gradWeights
	}
	return timing.Operation{
		Name: name, Bytes: bytes, SMs: sms,
		Renew: func(bool) error { return errors.Join(m.writeExperts(), m.writeNumbers(), m.spoil(m.gradWeights)) },
		Run: func(bool) error {
			return m.handle.DispatchBackward(ctx, m.Work, ep.DispatchBackwardArgs{
				Routing: m.known, GradRows: m.y, GradRowWeights: m.numbers, GradTokens: m.out,
				GradWeights: gradWeights,
			})
		},
		Check: func() error {
			if !m.numbers.IsZero() {
				if err := m.checkNumbers(); err != nil {
					return err
				}
			}
			return m.verdict(m.checkOut(name, false))
		},
	}
}

// spoil overwrites an output's old content.
func (m *gpuRank) spoil(t weft.Tensor) error { return m.Stream.Memset(t.Pointer(), 0xA5, t.Bytes()) }

// number is the gradient of the weight of a rank's selection, other ones each time.
func (m *expected) number(rank, token, k int) float32 {
	return float32((rank*1009+token*31+k*7+m.salt>>16*3)%65521 + 1)
}

// writeNumbers makes the gradients of the weights of this rank's rows.
func (m *gpuRank) writeNumbers() error {
	if m.numbers.IsZero() {
		return nil
	}
	all, each, topk := m.room(m.numbers.Bytes()), m.numbersOfRow(), m.cfg.TopK
	for _, p := range m.wantRows {
		for k := range each {
			if p.expert >= 0 {
				k = slices.Index(m.batch.ids[p.source][p.token*topk:(p.token+1)*topk], int32(p.expert))
			}
			binary.LittleEndian.PutUint32(all[4*(p.row*each+k%each):], math.Float32bits(m.number(p.source, p.token, k)))
		}
	}
	return m.Context.Upload(m.numbers.Pointer(), all)
}

// homeNumbers gives the gradients of weights that have come home.
func (m *gpuRank) homeNumbers() (func(token, k int) float32, error) {
	all := m.room(m.gradWeights.Bytes())
	err := m.Context.Download(all, m.gradWeights.Pointer())
	return func(token, k int) float32 {
		return math.Float32frombits(binary.LittleEndian.Uint32(all[4*(token*m.cfg.TopK+k):]))
	}, err
}

// checkNumbers compares the gradients of all weights.
func (m *gpuRank) checkNumbers() error {
	got, err := m.homeNumbers()
	if err != nil {
		return err
	}
	for i, e := range m.batch.ids[m.me] {
		token, k := i/m.cfg.TopK, i%m.cfg.TopK
		want := m.number(m.me, token, k)
		if e < 0 {
			want = 0
		}
		if got(token, k) != want {
			m.complain("dispatch-backward: the gradient of weight %d of token %d is %g, want %g", k, token, got(token, k), want)
			return nil
		}
	}
	return nil
}

// checkDots recomputes the gradients of some tokens' weights.
func (m *gpuRank) checkDots() error {
	got, err := m.homeNumbers()
	if err != nil {
		return err
	}
	for _, token := range m.someTokens(m.checks) {
		for k, e := range m.batch.ids[m.me][token*m.cfg.TopK : (token+1)*m.cfg.TopK] {
			if want := m.dot(token, int(e)); got(token, k) != want {
				m.complain("combine-backward: the gradient of weight %d of token %d is %g, want %g", k, token, got(token, k), want)
				return nil
			}
		}
	}
	return nil
}

// dot is the product of a token's row and its expert's output, in the order that package ep
// promises.
func (m *expected) dot(token, expert int) float32 {
	if expert < 0 {
		return 0
	}
	values, shift := m.floats(m.me, token)
	a, b := pow2(shift), pow2(shift-down(expert))
	var lanes [64]float32
	for i, v := range values {
		lanes[i%len(lanes)] = floats.FMA(v*a, v*b, lanes[i%len(lanes)])
	}
	for h := len(lanes) / 2; h > 0; h /= 2 {
		for j := range h {
			lanes[j] += lanes[j+h]
		}
	}
	return lanes[0]
}

// rowsChecked bounds how many rows' gradients are recomputed each time, where they are not the
// tokens' own.
const rowsChecked = 4096

// checkGradRows compares the gradients of this rank's rows: all that are those of their tokens, and
// of weighted ones some, other ones each time.
func (m *gpuRank) checkGradRows() error {
	n, stride := m.cfg.Hidden*m.spec.Output.Size(), 1
	if m.spec.Weighting == ep.Weighted {
		stride += len(m.wantRows) / rowsChecked
	}
	m.checks++
	return m.runs(func(run []wantRow) error {
		rows := m.room(len(run) * n)
		if err := m.Context.Download(rows, m.gradRows.Pointer().Add(run[0].row*n)); err != nil {
			return err
		}
		for i, p := range run {
			if (p.row+m.checks)%stride != 0 {
				continue
			}
			want, err := m.gradRow(p)
			if err != nil {
				return err
			}
			if !bytes.Equal(rows[i*n:(i+1)*n], want) {
				m.complain("combine-backward: the gradient of row %d, token %d of rank %d, is wrong", p.row, p.token, p.source)
				return nil
			}
		}
		return nil
	})
}

// gradRow is the gradient of a row: that of its token, times the weight where combine applies it.
func (m *gpuRank) gradRow(p wantRow) (row []byte, err error) {
	if m.spec.Weighting != ep.Weighted {
		return m.row(m.spec.Output, p.source, p.token, 0), nil
	}
	first := p.token * m.cfg.TopK
	k := slices.Index(m.batch.ids[p.source][first:first+m.cfg.TopK], int32(p.expert))
	values, shift := m.floats(p.source, p.token)
	scale, weight := pow2(shift), m.batch.all[p.source][first+k]
	row = make([]byte, 0, m.cfg.Hidden*m.spec.Output.Size())
	for _, v := range values {
		if row, err = floats.Append(row, m.spec.Output, v*scale*weight); err != nil {
			return nil, err
		}
	}
	return row, nil
}
