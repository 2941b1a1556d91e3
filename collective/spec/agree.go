package spec

import (
	"context"
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/weftgo/weft"
)

// Agree has all ranks compare their calls, before any of them has begun: it fails on every rank or on none.
// With an error of a rank's own it is that rank's, and tells the others. chosen is the algorithm that an engine
// has chosen, if it does so before ranks meet. Agree takes a meeting of the ranks on the host, so engines ask
// for it in checked mode only.
func Agree(ctx context.Context, comm *weft.Comm, c *Call, chosen string, refused error) error {
	return comm.Operations().VerifySame(ctx, c.Name(), c.describe(comm, chosen), refused)
}

// describe says all of a call that must be the same on every rank.
func (c *Call) describe(comm *weft.Comm, chosen string) string {
	b := &strings.Builder{}
	b.WriteString(c.String())
	if c.Collective.Reduces() && c.Op == weft.PreMulSum {
		if b.WriteString(" by "); c.ScalarOnDevice {
			b.WriteString("a scalar on the GPU")
		} else {
			b.WriteString(c.scalarText())
		}
	}
	if c.DeviceCounts.given() {
		b.WriteString(", counts on the GPU")
	} else if n := &c.Counts; c.Collective == AllGatherV {
		fmt.Fprintf(b, ", counts %v, at %v", n.Recv, n.RecvAt)
	} else if c.Collective == ReduceScatterV {
		fmt.Fprintf(b, ", counts %v", n.Send)
	}
	if c.Norm != nil {
		fmt.Fprintf(b, ", eps %v", c.Norm.Eps)
	}
	if c.Algorithm != "" {
		b.WriteString(", by ")
		b.WriteString(c.Algorithm)
	} else if chosen != "" {
		b.WriteString(", which chooses ")
		b.WriteString(chosen)
	}
	if c.Blocks > 0 {
		fmt.Fprintf(b, ", %d blocks", c.Blocks)
	}
	if c.Threads > 0 {
		fmt.Fprintf(b, ", %d threads", c.Threads)
	}
	if c.Symmetric && comm.Device() != nil {
		b.WriteString(", symmetric")
		c.describeOperands(b, comm)
	}
	return b.String()
}

// describeOperands says where the operands of a symmetric call lie that all ranks have alike. One that is this
// rank's part of the other lies elsewhere on each.
func (c *Call) describeOperands(b *strings.Builder, comm *weft.Comm) {
	k := c.Collective
	in, out := k.OperandsAlike()
	for _, o := range [...]struct {
		what   string
		tensor *weft.Tensor
		alike  bool
		part   bool
	}{
		{"input", &c.In, in, c.InPlace && k.OutParts() && !k.InParts()},
		{"output", &c.Out, out, c.InPlace && k.InParts() && !k.OutParts()},
	} {
		if !o.alike || c.Bytes == 0 {
			continue
		}
		fmt.Fprintf(b, ", %s ", o.what)
		if w, at, ok := comm.Operations().Find(o.tensor.Data, o.tensor.Bytes()); o.part {
			b.WriteString("in place")
		} else if ok {
			fmt.Fprintf(b, "in window %d at %d", w.ID(), at)
		} else {
			b.WriteString("in no window")
		}
	}
}

// scalarText is the scalar of a pre-multiplied sum.
func (c *Call) scalarText() string {
	switch bits := c.ScalarBits(); ScalarType(c.DType) {
	case weft.Float32:
		return fmt.Sprint(math.Float32frombits(uint32(bits)))
	case weft.Float64:
		return fmt.Sprint(math.Float64frombits(bits))
	default:
		return fmt.Sprintf("%#x", bits)
	}
}

// ScalarBits are those of the scalar of a pre-multiplied sum that lies on the host.
func (c *Call) ScalarBits() (bits uint64) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&bits)), unsafe.Sizeof(bits)), c.Scalar.Raw())
	return bits
}
