package gpu

import (
	"embed"
	"fmt"
	"slices"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

//go:embed *.cu *.cuh
var files embed.FS

// moving is the type of the kernel of plans that reduce nothing.
const moving = weft.Uint8

// Kernels are those that executors load on GPUs of an architecture: those of plans that reduce nothing, and those for
// each of the types; without types, for all.
func Kernels(arch string, types ...weft.DType) (specs []kernel.Spec) {
	for t := weft.DType(1); t <= weft.Bool; t++ {
		if t != weft.UE8M0 && (len(types) == 0 || t == moving || slices.Contains(types, t)) {
			for _, c := range []code{{t, false, false}, {t, true, false}, {t, true, true}} {
				specs = append(specs, c.source(arch).Spec)
			}
		}
	}
	return specs
}

// code is what a kernel is for: the type of elements, and what plans have. Packets take registers that folds of plain
// data use otherwise, and what reaches other hosts, or ranks by a switch, takes a stack; one kernel has all.
type code struct {
	dtype           weft.DType
	packets, beyond bool
}

// byte is the code in one: types are fewer than 64.
func (c code) byte() byte {
	b := byte(c.dtype)
	for i, has := range []bool{c.packets, c.beyond} {
		if has {
			b |= 1 << (6 + i)
		}
	}
	return b
}

// source is the kernel.
func (c code) source(arch string) enginegpu.Source {
	headers := device.Headers()
	for _, h := range []string{
		"block.cuh", "copies.cuh", "entries.cuh", "far.cuh", "folds.cuh", "move.cuh", "one_vector.cuh", "packets.cuh",
		"part.cuh", "program.cuh", "quick.cuh", "switch.cuh", "sync.cuh", "vectors.cuh",
	} {
		headers[h] = text(h)
	}
	name := "plans of " + c.dtype.String()
	switch {
	case c.beyond:
		name += ", between hosts or by switches"
	case c.packets:
		name += ", packets"
	}
	return enginegpu.Source{Spec: kernel.Spec{
		Name: name, Source: text("execute.cu"), Headers: headers,
		Defines: map[string]string{
			"WEFT_TYPE":            strconv.Itoa(int(c.dtype)),
			"WEFT_PARAMETER_BYTES": strconv.Itoa(int(unsafe.Sizeof(planArgs{}))),
		},
		Kernels: []string{fmt.Sprintf("weft::plan::execute<%t,%t>", c.packets, c.beyond)}, Arch: arch,
	}}
}

func text(file string) string {
	b, err := files.ReadFile(file)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(b)
}

// planArgs are the Plan of program.cuh.
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
	whole, unit, switches, own    uint32
	early                         uint32
	streams, ended                uint64
	outbox, inbox, outboxAt       uint64
	allIn, allOut, allWindow      uint64
	in, out                       device.Operands
	group                         device.Group
}
