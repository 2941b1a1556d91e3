package eptest

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// rows are the rows of one rank, as bytes, and their scales.
type rows struct{ data, scales []byte }

// rowBytes and the following are sizes in bytes.
func (b *batch) rowBytes() int {
	switch b.spec.Payload {
	case ep.BF16, ep.FP16:
		return 2 * b.spec.Hidden
	case ep.FP32:
		return 4 * b.spec.Hidden
	case ep.Opaque:
		return b.spec.RowBytes
	default:
		return b.spec.Hidden
	}
}

func (b *batch) scaleBytes() int {
	switch b.spec.Payload {
	case ep.FP8:
		return b.spec.Hidden / 32
	case ep.FP8UE8M0:
		return b.spec.Hidden / 128
	case ep.Opaque:
		return b.spec.ScaleBytes
	default:
		return 0
	}
}

// output is the type of rows that come home.
func (b *batch) output() weft.DType {
	switch {
	case b.spec.Output != weft.InvalidDType:
		return b.spec.Output
	case b.spec.Payload == ep.BF16, b.spec.Payload == ep.FP8, b.spec.Payload == ep.FP8UE8M0:
		return weft.BFloat16
	case b.spec.Payload == ep.FP16:
		return weft.Float16
	case b.spec.Payload == ep.FP32:
		return weft.Float32
	default:
		return weft.InvalidDType
	}
}

func (b *batch) combines() bool   { return b.output() != weft.InvalidDType }
func (b *batch) outputBytes() int { return b.spec.Hidden * b.output().Size() }

// wire is what one rank's rows look like on their way: quantised, if dispatch does that.
func (b *batch) wire(x rows) rows {
	from := b.spec.Quantize
	if from == weft.InvalidDType {
		return x
	}
	n := b.spec.Hidden
	var out rows
	for at := 0; at < len(x.data); at += n * from.Size() {
		for g := 0; g < n; g += 128 {
			group := make([]float32, 128)
			for i := range group {
				group[i] = number(from, x.data[at:], g+i)
			}
			scale, q := quantise(group, b.spec.PowerOfTwoScales || b.spec.Payload == ep.FP8UE8M0)
			out.data = append(out.data, q...)
			if b.spec.Payload == ep.FP8UE8M0 {
				_, exp := math.Frexp(float64(scale))
				out.scales = append(out.scales, byte(exp-1+127))
			} else {
				out.scales = binary.LittleEndian.AppendUint32(out.scales, math.Float32bits(scale))
			}
		}
	}
	return out
}

// received is what stands in rank d's memory after a dispatch of the given wire rows, in memory
// that held fill before.
func (b *batch) received(p *prepared, d int, wire []rows, fill byte) rows {
	a := &p.at[d]
	n, m := b.rowBytes(), b.scaleBytes()
	out := rows{data: filled(len(a.rows)*n, fill), scales: filled(len(a.rows)*m, fill)}
	zone := len(a.rows)
	if b.spec.Layout == ep.ExpertMajor {
		zone = b.capacity()
	}
	for i, r := range a.rows {
		if r.kind == emptyRow {
			continue
		}
		data, scales := make([]byte, n), make([]byte, m)
		if r.kind == tokenRow {
			copy(data, wire[r.src].data[r.token*n:])
			copy(scales, wire[r.src].scales[r.token*m:])
		}
		copy(out.data[i*n:], data)
		if b.spec.ScaleOrder == ep.RowMajorScales {
			copy(out.scales[i*m:], scales)
			continue
		}
		for w := range m / 4 {
			at := (i/zone)*zone*(m/4) + w*zone + i%zone
			copy(out.scales[4*at:4*at+4], scales[4*w:])
		}
	}
	return out
}

// combine sums at rank src what the experts made: y are all ranks' rows, bias are src's own.
func (b *batch) combine(p *prepared, src int, y [][]byte, bias [][]byte, weighted bool) []byte {
	d, n := b.output(), b.spec.Hidden
	size := b.outputBytes()
	out := make([]byte, b.tokens(src)*size)
	for t := range b.tokens(src) {
		for i := range n {
			var acc float32
			for j, extra := range bias {
				if v := number(d, extra[t*size:], i); j == 0 {
					acc = v
				} else {
					acc += v
				}
			}
			at := func(dest rowAddress) float32 { return number(d, y[dest.rank][dest.row*size:], i) }
			home := p.home[src][t*b.spec.TopK : (t+1)*b.spec.TopK]
			weights := b.weights[src][t*b.spec.TopK:]
			add := func(acc float32, k int) float32 {
				if weighted {
					return fma(weights[k], at(home[k]), acc)
				}
				return acc + at(home[k])
			}
			switch {
			case b.byExpert() && b.spec.Reduction == ep.Exact:
				for k, dest := range home {
					if dest.ok {
						acc = add(acc, k)
					}
				}
			case b.spec.Reduction.ByHost():
				for host := range b.ranks {
					var sum float32
					any := false
					for rank := range b.ranks {
						if b.host(rank) != host {
							continue
						}
						once := false
						for k, dest := range home {
							if dest.ok && dest.rank == rank && (b.byExpert() || !once) {
								any, once = true, true
								if b.byExpert() {
									sum = add(sum, k)
								} else {
									sum += at(dest)
								}
							}
						}
					}
					if any && b.spec.Reduction == ep.PartialByHost {
						sum = rounded(d, sum)
					}
					if any {
						acc += sum
					}
				}
			default:
				for _, rank := range b.order(home) {
					var sum float32
					any := false
					for k, dest := range home {
						if !dest.ok || dest.rank != rank {
							continue
						}
						if !b.byExpert() {
							sum, any = at(dest), true // one row for all of them
							continue
						}
						sum, any = add(sum, k), true
					}
					if any {
						acc += rounded(d, sum)
					}
				}
			}
			putNumber(d, out[t*size:], i, acc)
		}
	}
	return out
}

// order is that in which the sums of a token's ranks are added.
func (b *batch) order(home []rowAddress) []int {
	last := make([]int, b.ranks)
	ranks := make([]int, b.ranks)
	for rank := range ranks {
		ranks[rank] = rank
	}
	for k, dest := range home {
		if dest.ok && b.spec.Reduction == ep.PartialBySelection {
			last[dest.rank] = k
		}
	}
	slices.SortStableFunc(ranks, func(a, b int) int { return last[a] - last[b] })
	return ranks
}

func rounded(d weft.DType, x float32) float32 {
	var buf [4]byte
	putNumber(d, buf[:], 0, x)
	return number(d, buf[:], 0)
}

// scalarsHome takes one number per row (or per row and selection) back to rank src's selections.
func (b *batch) scalarsHome(p *prepared, src int, scalars [][]float32) []float32 {
	out := make([]float32, len(p.home[src]))
	for i, dest := range p.home[src] {
		switch {
		case !dest.ok:
		case b.byExpert():
			out[i] = scalars[dest.rank][dest.row]
		default:
			out[i] = scalars[dest.rank][dest.row*b.spec.TopK+i%b.spec.TopK]
		}
	}
	return out
}

// spread is the backward of combine at rank d: every row gets its token's gradient, weighted.
func (b *batch) spread(p *prepared, d int, grad [][]byte, fill byte) []byte {
	size := b.outputBytes()
	a := &p.at[d]
	out := filled(len(a.rows)*size, fill)
	for i, r := range a.rows {
		dst := out[i*size : (i+1)*size]
		switch r.kind {
		case padRow:
			clear(dst)
		case tokenRow:
			src := grad[r.src][r.token*size : (r.token+1)*size]
			if b.spec.Weighting == ep.Plain {
				copy(dst, src)
				continue
			}
			w := b.weights[r.src][r.token*b.spec.TopK+r.k]
			for j := range b.spec.Hidden {
				putNumber(b.output(), dst, j, w*number(b.output(), src, j))
			}
		}
	}
	return out
}

// dots are the gradients of rank src's weights: the products of its tokens' gradients with the
// experts' rows.
func (b *batch) dots(p *prepared, src int, grad, y [][]byte) []float32 {
	size := b.outputBytes()
	out := make([]float32, len(p.home[src]))
	for i, dest := range p.home[src] {
		if !dest.ok {
			continue
		}
		var lane [64]float32
		g, v := grad[src][i/b.spec.TopK*size:], y[dest.rank][dest.row*size:]
		for j := range b.spec.Hidden {
			lane[j%64] = fma(number(b.output(), g, j), number(b.output(), v, j), lane[j%64])
		}
		for half := 32; half > 0; half /= 2 {
			for j := range half {
				lane[j] += lane[j+half]
			}
		}
		out[i] = lane[0]
		if out[i] != out[i] {
			out[i] = math.Float32frombits(0x7FFFFFFF)
		}
	}
	return out
}

func filled(n int, fill byte) []byte { return bytes.Repeat([]byte{fill}, n) }
