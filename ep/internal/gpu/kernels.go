package gpu

import (
	"embed"
	"fmt"
	"strings"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

//go:embed *.cu *.cuh
var kernelFiles embed.FS

// shape is what all ranks of a handle agree on: the Shape of exchange.cuh.
type shape struct {
	capacity, topk, experts, local uint32
	reciprocal                     uint32 // of local
	_                              uint32
}

// pair is what is known of a selection: the Pair of exchange.cuh.
type pair struct{ target, weight uint32 } //nolint:unused // its size is what is used

const pairBytes = int(unsafe.Sizeof(pair{}))

// What a launch does: launchFlags tell the kernels.
const (
	flagSend = 1 << iota
	flagReceive
	flagRoute // routing travels
	flagMove  // rows travel

	flagInPlace      // rows are stored where the caller reads them
	flagWideIDs      // expert indices have 64 bits
	flagPowerOfTwo   // quantisation: scales are powers of two
	flagExponents    // quantisation: scales are stored as exponents
	flagColumnScales // scales stand column-major
	flagPacked       // zones of experts follow each other

	flagRowPerToken     // a token has one row at a rank
	flagRowPerSelection // a row is a selection's
	flagWeighted        // rows are multiplied by their weights
	flagBulk            // rows go by bulk copies
	flagRowGradients    // rows get gradients
	flagWeightGradients // so do weights
)

// launchFlags are the flags as kernels name them, in the order of their bits.
var launchFlags = []string{
	"SEND", "RECEIVE", "ROUTE", "MOVE", "IN_PLACE", "WIDE_IDS", "POWER_OF_TWO", "EXPONENTS", "COLUMN_SCALES", "PACKED",
	"ROW_PER_TOKEN", "ROW_PER_SELECTION", "WEIGHTED", "BULK", "ROW_GRADIENTS", "WEIGHT_GRADIENTS",
}

// flagList is the list of an enumeration's constants.
var flagList = func() string {
	var all []string
	for bit, name := range launchFlags {
		all = append(all, fmt.Sprintf("%s=%d", name, 1<<bit))
	}
	return strings.Join(all, ",")
}()

// typeNumber is how kernels are told of a type.
func typeNumber(d weft.DType) int {
	switch d {
	case weft.BFloat16:
		return 1
	case weft.Float16:
		return 2
	case weft.Float32:
		return 3
	default:
		return 0
	}
}

// The kernels' names, which profilers show. The programs of an operation, whatever their forms,
// have one name each, and no other kernel's has the word dispatch or combine in it: benchmarks find
// the kernels by these.
const (
	slotsDispatch  = "weft::slots::dispatch"
	slotsGather    = "weft::slots::all_gather"
	slotsCombine   = "weft::slots::combine"
	directRowMap   = "weft::direct::row_map"
	directDispatch = "weft::direct::dispatch"
	directCombine  = "weft::direct::combine"
	portsDispatch  = "weft::ports::carry_rows"
	portsOnce      = "weft::ports::carry_once"
	portsCombine   = "weft::ports::carry_sums"
)

// bare is a kernel's name without its namespaces.
func bare(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }

// quantising is what a program's name says of it.
func quantising(d weft.DType) string {
	if d == weft.InvalidDType {
		return ""
	}
	return fmt.Sprintf(", quantising %v", d)
}

// number is how kernels are told of a choice.
func number(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

// kernelSpec is that of a file, its kernels, and the headers that it includes beside the one that
// all do.
func kernelSpec(name, file, arch string, kernels []string, includes ...string) kernel.Spec {
	headers := device.Headers()
	for _, h := range append(includes, "exchange.cuh") {
		headers[h] = kernelText(h)
	}
	return kernel.Spec{
		Name: "ep " + name, Source: kernelText(file), Headers: headers,
		Defines: map[string]string{"WEFT_FLAGS": flagList}, Kernels: kernels, Arch: arch,
	}
}

func kernelText(file string) string {
	text, err := kernelFiles.ReadFile(file)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}
