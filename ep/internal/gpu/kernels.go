package gpu

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

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

// dispatchArgs are the arguments of a dispatch: the Dispatch of slots_dispatch.cuh. Fields that
// are addresses lie on this GPU; offsets are those of a window.
type dispatchArgs struct {
	shape                              shape
	state                              uint64
	heads, counts, records, rows       uint64
	arrived, ready                     uint64
	turnBytes                          uint64
	direct, directScales               uint64
	pieces, ranks, selections, zone    device.Divisor
	slotBytes, rowBytes                uint32
	scaleWords, pieceWords             uint32
	scaleRow, scaleZone, scaleWord     uint32
	flags, tokens, hidden              uint32
	senders, block, free, notifyBlocks uint32
	ids, weights, x, scales            uint64
	home, recvRows, described, ranges  uint64
	filled, credits, out, outScales    uint64
	group                              device.Group
}

// combineArgs are the arguments of a combine: the Combine of slots_combine.cu.
type combineArgs struct {
	shape                           shape
	state                           uint64
	heads, home, returned           uint64
	turnBytes                       uint64
	pieces, groups                  device.Divisor
	rowBytes, flags, tokens, biases uint32
	senders, free                   uint32
	first, call                     uint32
	routed, recvRows, sent          uint64
	y, out                          uint64
	bias                            [2]uint64
	filled, credits                 uint64
	weights                         uint64
	group                           device.Group
}

// describeArgs are the arguments of a description: the Describe of describe.cuh.
type describeArgs struct {
	shape                  shape
	ranks, byExpert        uint32
	recvRows, sent         uint64
	recvTokens             uint64
	tokens, sources        uint64
	selections, weights    uint64
	experts, expertWeights uint64
}

// weighArgs are the arguments of what gives a Routing weights, or tells its experts: the Weigh of
// describe.cu.
type weighArgs struct {
	home    uint64
	n, _    uint32
	weights uint64
	ids     uint64
}

// AllKernels lists the kernels of handles and counters: see ep.Kernels.
func AllKernels(arch string) []kernel.Spec {
	var all []kernel.Spec
	for _, byExpert := range []bool{false, true} {
		for _, from := range []weft.DType{weft.InvalidDType, weft.BFloat16, weft.Float16, weft.Float32} {
			f := dispatchForm{byExpert: byExpert, quantize: from, kind: byFew, units: 1}
			all = append(all, dispatchKernel(f, arch))
			for ; f.units <= spec.MostUnits(spec.Spec{Quantize: from}); f.units *= 2 {
				for _, f.kind = range []kind{byValue, byMany, byFlag} {
					all = append(all, dispatchKernel(f, arch))
				}
			}
		}
	}
	gather := gatherForm
	gather.gathers = true
	all = append(all, dispatchKernel(gather, arch))
	for _, sums := range []int{spec.RankSums, spec.PartialSums, spec.ExactSums} {
		for _, of := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
			for _, bySelection := range []bool{false, true} {
				if sums == spec.ExactSums && bySelection {
					continue
				}
				f := combineForm{sums: sums, bySelection: bySelection, of: of, kind: byFlag, group: 4}
				all = append(all, combineKernel(f, arch))
				for _, f.group = range []int{2, 4, 8} {
					if sums == spec.ExactSums && f.group < 8 {
						continue
					}
					for _, f.kind = range []kind{byValue, byMany} {
						all = append(all, combineKernel(f, arch))
					}
				}
			}
		}
	}
	for _, of := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
		all = append(all, gradientKernel(of, arch))
	}
	return append(append(all, placedKernels(arch)...), describeKernel(arch), copyKernel(arch), censusKernel(arch))
}

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

// kind is what the kernels of an operation through slots differ in besides: what tells that a row
// has come, and whether one serves every call.
type kind string

const (
	byValue kind = "value" // rows are their own flags
	byMany  kind = "many"  // as byValue, for calls that do everything at once
	byFew   kind = "few"   // as byMany, of few tokens
	byFlag  kind = "flag"  // a word a block tells of rows
)

// dispatchForm is what handles differ in whose dispatches are programs of their own.
type dispatchForm struct {
	byExpert bool
	quantize weft.DType
	kind     kind
	units    int  // of a piece
	gathers  bool // every token goes to everybody: an all-gather, which profilers are told of by that name
}

// gatherForm is the only form of a dispatch that gathers: it carries a few bytes, which may be any.
var gatherForm = dispatchForm{quantize: weft.InvalidDType, kind: byFlag, units: 1}

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
)

func dispatchKernel(f dispatchForm, arch string) kernel.Spec {
	name, layout := slotsDispatch, spec.RankMajor
	if f.gathers {
		name = slotsGather
	}
	if f.byExpert {
		layout = spec.ExpertMajor
	}
	s := kernelSpec(fmt.Sprintf("%s, %s %d, %v%s", bare(name), f.kind, f.units, layout, quantising(f.quantize)),
		"slots_dispatch.cu", arch,
		[]string{name}, "slots_dispatch.cuh", "expert_index.cuh", "notify.cuh", "quantize.cuh")
	s.Defines["WEFT_KERNEL"] = bare(name)
	s.Defines["WEFT_BY_EXPERT"] = number(f.byExpert)
	s.Defines["WEFT_QUANTIZE"] = strconv.Itoa(typeNumber(f.quantize))
	s.Defines["WEFT_VALUE"], s.Defines["WEFT_UNITS"] = strconv.FormatBool(f.kind != byFlag), strconv.Itoa(f.units)
	s.Defines["WEFT_PURPOSE"] = "ANY"
	if f.kind == byMany || f.kind == byFew {
		s.Defines["WEFT_PURPOSE"] = strings.ToUpper(string(f.kind))
	}
	s.Defines["WEFT_DISPATCH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(dispatchArgs{})))
	return s
}

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

// combineForm is what handles differ in whose combines are programs of their own.
type combineForm struct {
	sums        int
	bySelection bool
	of          weft.DType
	kind        kind
	group       int // rows that a thread awaits at once: ranks, or selections
}

func combineKernel(f combineForm, arch string) kernel.Spec {
	name := fmt.Sprintf("combine, %s %d, %d of %v", f.kind, f.group, f.sums, f.of)
	if f.bySelection {
		name += " by selection"
	}
	s := kernelSpec(name, "slots_combine.cu", arch, []string{slotsCombine})
	s.Defines["WEFT_FORM"], s.Defines["WEFT_BY_SELECTION"] = strconv.Itoa(f.sums), number(f.bySelection)
	s.Defines["WEFT_TYPE"] = strconv.Itoa(typeNumber(f.of))
	s.Defines["WEFT_VALUE"], s.Defines["WEFT_GROUP"] = strconv.FormatBool(f.kind != byFlag), strconv.Itoa(f.group)
	s.Defines["WEFT_FUSED"] = strconv.FormatBool(f.kind == byMany)
	s.Defines["WEFT_COMBINE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(combineArgs{})))
	return s
}

func describeKernel(arch string) kernel.Spec {
	s := kernelSpec("describe", "describe.cu", arch, []string{"weft::ep::describe", "weft::ep::weigh"}, "describe.cuh")
	s.Defines["WEFT_DESCRIBE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(describeArgs{})))
	s.Defines["WEFT_WEIGH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(weighArgs{})))
	return s
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
