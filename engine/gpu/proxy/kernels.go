package proxy

import (
	_ "embed"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

//go:embed hand_over.cu
var source string

// What hand_over.cu has, too.
const (
	threads      = 512
	slots        = 64
	sequenceBits = 24
)

// Of orders without bytes.
const (
	doneOrder   = 0
	failedOrder = 1
)

// order is the Order of hand_over.cu.
type order struct{ sequence, dst, src, bytes uint64 }

// handOverArgs are the HandOver of hand_over.cu.
type handOverArgs struct {
	state, call, orders, done, beat uint64
	number                          uint64
	op, _                           uint32
	group                           device.Group
}

// Kernels lists the kernels of proxies on GPUs of an architecture, for a cache that is filled beforehand.
func Kernels(arch string) []kernel.Spec { return []kernel.Spec{handOver(arch).Spec} }

func handOver(arch string) enginegpu.Source {
	return enginegpu.Source{Spec: kernel.Spec{
		Name: "hand-over", Source: source, Headers: device.Headers(), Arch: arch,
		Kernels: []string{"weft::proxy::hand_over"},
		Defines: map[string]string{"WEFT_PARAMETER_BYTES": strconv.Itoa(int(unsafe.Sizeof(handOverArgs{})))},
	}}
}
