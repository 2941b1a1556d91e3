package collective

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/internal/closer"
	"github.com/weftgo/weft/internal/simd"
)

const normEps = 1e-6

//go:embed rms_norm.cu
var normSource string

// normArgs are the RmsNorm of rms_norm.cu.
type normArgs struct {
	rows, residual, gamma, residualOut cuda.Pointer
	vectors                            uint32
	columns, eps                       float32
	_                                  uint32
}

// normed is what a rank needs to measure an all-reduce with a norm: every row of an operand is the same.
type normed struct {
	hidden       int
	dtype        weft.DType
	apart        bool // the norm is a kernel of its own
	row          int  // bytes
	in, residual []byte
	want         [2][]byte // a row of the output; of a loopback also that of rows that a peer would have sent

	residuals, residualOuts, gammas *cuda.Memory
	program                         *enginegpu.Program
	kernel                          enginegpu.Launch[normArgs]
}

// validateNorm says what is wrong with a sweep of all-reduces with norms.
func (s *Sweep) validateNorm(gpu bool) error {
	vector := 8
	switch s.DType {
	case "bf16", "fp16":
	case "fp32":
		vector = 4
	default:
		return fmt.Errorf("a norm of %s: want bf16, fp16 or fp32", s.DType)
	}
	switch {
	case s.Kind != "allreduce" || s.Op != "sum":
		return errors.New("a norm goes with sums of allreduce")
	case !gpu:
		return errors.New("a norm is measured on GPUs")
	case s.InPlace:
		return errors.New("a norm is measured out of place")
	case s.Hidden > collective.MaxHidden || s.Hidden%vector != 0:
		return fmt.Errorf("rows of %d numbers: want whole vectors of %d, and %d at most", s.Hidden, vector,
			collective.MaxHidden)
	}
	return nil
}

// openNorm makes what all sizes of at most so many bytes use.
func (m *gpuRank) openNorm(ctx context.Context, s *Sweep, most int, c *closer.Stack) (err error) {
	dtype, err := weft.ParseDType(s.DType)
	if err != nil {
		return err
	}
	n := &normed{hidden: s.Hidden, dtype: dtype, apart: s.Apart, row: s.Hidden * dtype.Size()}
	if err := n.fill(m.Me, m.ranks, m.of.Loopback); err != nil {
		return err
	}
	for _, memory := range []**cuda.Memory{&n.residuals, &n.residualOuts, &n.gammas} {
		if *memory, err = m.Context.Alloc(most); err != nil {
			return err
		}
		c.Add((*memory).Close)
	}
	rows := make([]byte, 0, most)
	for len(rows)+n.row <= most {
		rows = append(rows, n.residual...)
	}
	if err := errors.Join(m.Context.Upload(n.residuals.Pointer(), rows),
		m.Context.Upload(n.gammas.Pointer(), n.gamma())); err != nil {
		return err
	}
	m.norm = n
	if !n.apart {
		return nil
	}
	source := enginegpu.Source{Spec: normSpec(dtype, m.Comm.Device().Arch())}
	n.program, err = enginegpu.Load(ctx, m.Comm, "norm", source)
	if err != nil {
		return err
	}
	c.Add(n.program.Close)
	major, _, err := m.Context.Device().ComputeCapability()
	if err != nil {
		return err
	}
	f := n.program.Functions(0)[0]
	if err := f.SetMaxDynamicShared(n.row); err != nil {
		return err
	}
	n.kernel, err = enginegpu.NewLaunch(f, cuda.LaunchConfig{
		Block: cuda.Dim{X: 512}, Shared: n.row, Dependent: major >= 9,
	}, normArgs{})
	return err
}

// normSpec is the kernel for rows of a type.
func normSpec(d weft.DType, arch string) kernel.Spec {
	return kernel.Spec{
		Name: "norm of " + d.String(), Source: normSource, Headers: device.Headers(), Arch: arch,
		Defines: map[string]string{
			"WEFT_TYPE": strconv.Itoa(int(d)), "WEFT_PARAMETER_BYTES": strconv.Itoa(int(unsafe.Sizeof(normArgs{}))),
		},
		Kernels: []string{"weft::rms_norm"},
	}
}

func (n *normed) gamma() []byte {
	b, _ := reduction{dtype: n.dtype, op: weft.Max, ranks: 2}.unit(1, 5, n.row)
	return (&content{part: n.row, units: [][]byte{b}}).row()
}

// row is a part.
func (c *content) row() []byte {
	b := make([]byte, c.part)
	c.write(b, 0)
	return b
}

// fill makes the rows.
func (n *normed) fill(me, ranks int, alone bool) error {
	r := reduction{n.dtype, weft.Sum, ranks, alone}
	t := map[weft.DType]simd.Type{weft.BFloat16: simd.BF16, weft.Float16: simd.F16, weft.Float32: simd.F32}[n.dtype]
	var err error
	row := func(rank, of int) []byte {
		unit, failed := r.unit(rank, of, n.row)
		err = errors.Join(err, failed)
		return (&content{part: n.row, units: [][]byte{unit}}).row()
	}
	n.in, n.residual = row(me, 0), row(0, 3)
	sum, gamma := row(-1, 0), n.gamma()
	for i, sum := range [][]byte{sum, make([]byte, n.row)} {
		n.want[i] = make([]byte, n.row)
		simd.Reduce(simd.Sum, t, false, n.want[i], sum, n.residual)
		p := unsafe.Pointer(&n.want[i][0])
		simd.RMSNorm(t, p, p, unsafe.Pointer(&gamma[0]), n.hidden, normEps)
	}
	return err
}

// attach gives an exchange the norm.
func (n *normed) attach(x *exchange) {
	x.Name = "allreducenorm"
	rows := x.size / n.row
	bytes := func(p cuda.Pointer) weft.Tensor { return weft.DeviceTensor(p, n.dtype, rows*n.hidden) }
	norm := collective.Norm{
		Residual: bytes(n.residuals.Pointer()), ResidualOut: bytes(n.residualOuts.Pointer()),
		Gamma: weft.DeviceTensor(n.gammas.Pointer(), n.dtype, n.hidden), Eps: normEps,
	}
	x.Kind.run = func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
		return g.AllReduceNorm(ctx, s, c.Out, c.In, norm)
	}
	if !n.apart {
		return
	}
	x.behind = " + norm"
	x.Kind.run = func(ctx context.Context, g *collective.Group, s *weft.Stream, c *collective.Call) error {
		*n.kernel.Args = normArgs{
			rows: c.Out.Pointer(), residual: n.residuals.Pointer(), gamma: n.gammas.Pointer(),
			residualOut: n.residualOuts.Pointer(), vectors: uint32(n.row / 16), columns: float32(n.hidden), eps: normEps,
		}
		n.kernel.SetGrid(cuda.Dim{X: uint32(rows)})
		return errors.Join(g.AllReduce(ctx, s, c.Out, c.In, weft.Sum), n.kernel.Start(s.CUDA()))
	}
}

// wrongRows counts the rows that are not as they should be. Those of a loopback that a peer would have sent
// have zeros for sums; where the norm is apart, such a share may end within a row.
func (x *exchange) wrongRows(n *normed, got []byte) (wrong int) {
	for ; len(got) > 0; got = got[n.row:] {
		if row := string(got[:n.row]); row != string(n.want[0]) && (!x.alone || row != string(n.want[1])) {
			wrong++
		}
	}
	return wrong
}
