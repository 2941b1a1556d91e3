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
// With an error of a rank's own it is that rank's, and tells the others. It takes a meeting of the ranks on
// the host, so engines ask for it in checked mode only.
func Agree(ctx context.Context, comm *weft.Comm, c *Call, refused error) error {
	return comm.Operations().VerifySame(ctx, c.Name(), c.describe(comm), refused)
}

// describe says all of a call that must be the same on every rank.
func (c *Call) describe(comm *weft.Comm) string {
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
	if c.Algorithm != "" {
		b.WriteString(", by ")
		b.WriteString(c.Algorithm)
	}
	if c.Symmetric && comm.Device() != nil {
		b.WriteString(", symmetric")
		for _, t := range []*weft.Tensor{&c.In, &c.Out} {
			if w, at, ok := comm.Operations().Find(t.Data, t.Bytes()); ok {
				fmt.Fprintf(b, ", window %d at %d", w.ID(), at)
			}
		}
	}
	return b.String()
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
