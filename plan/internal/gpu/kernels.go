package gpu

import (
	_ "embed"
	"slices"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

//go:embed execute.cu
var execute string

//go:embed move.cuh
var move string

// moving is the type of the kernel of plans that reduce nothing.
const moving = weft.Uint8

// Kernels are those that executors load on GPUs of an architecture: that of plans that reduce nothing, and one for each
// of the types; without types, for all.
func Kernels(arch string, types ...weft.DType) (specs []kernel.Spec) {
	for t := weft.DType(1); t <= weft.Bool; t++ {
		if t != weft.UE8M0 && (len(types) == 0 || t == moving || slices.Contains(types, t)) {
			specs = append(specs, source(t, arch).Spec)
		}
	}
	return specs
}

// source is the kernel that runs plans on elements of a type.
func source(t weft.DType, arch string) enginegpu.Source {
	headers := device.Headers()
	headers["move.cuh"] = move
	return enginegpu.Source{Spec: kernel.Spec{
		Name: "plans of " + t.String(), Source: execute, Headers: headers,
		Defines: map[string]string{
			"WEFT_TYPE": strconv.Itoa(int(t)), "WEFT_PARAMETER_BYTES": strconv.Itoa(int(unsafe.Sizeof(planArgs{}))),
		},
		Kernels: []string{"weft::plan::execute"}, Arch: arch,
	}}
}

// planArgs are the Plan of execute.cu.
type planArgs struct {
	state                         uint64
	program                       uint64
	blocks                        uint64
	barriers, semaphores, awaited uint64
	inbound, begun                uint64
	data, packets                 uint64
	dataHalf, packetsHalf         uint64
	chunk, units                  uint64
	align                         uint32
	stride, ownStride             uint32
	operands, vectors             uint32
	uses                          uint32
	shared                        uint32
	whole, unit, _                uint32
	in, out                       device.Operands
	group                         device.Group
}
