package ep

import (
	"embed"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/device"
	"github.com/weftgo/weft/cuda/kernel"
)

//go:embed kernels/*.cu kernels/*.cuh
var kernelFiles embed.FS

// shape is what all ranks of a handle agree on: the Shape of kernels/exchange.cuh.
type shape struct {
	capacity, topk, experts, local uint32
	reciprocal                     uint32 // of local
	_                              uint32
}

// pair is what is known of a selection: the Pair of kernels/exchange.cuh.
type pair struct{ what, weight uint32 } //nolint:unused // its size is what is used

const pairBytes = int(unsafe.Sizeof(pair{}))

// What a launch does: the enumerations of kernels/dispatch.cuh and kernels/combine.cu.
const (
	whatSend    = 1
	whatReceive = 2
	whatRoute   = 4
	whatMove    = 8

	whatDirect     = 16
	whatWide       = 64
	whatPowerOfTwo = 128 // as what follows, also of a push
	whatExponents  = 256

	whatWeighted = 64 // of combine

	whatByRank  = 4 // of handles whose rows have their final places before they leave
	whatPacked  = 8
	whatColumns = 32
	whatBulk    = 512
)

// dispatchArgs are the arguments of a dispatch: the Dispatch of kernels/dispatch.cuh. Fields that are addresses lie on this GPU; offsets are those of
// a window.
type dispatchArgs struct {
	group                             device.Group
	shape                             shape
	state                             uint64
	heads, counts, records, rows      uint64
	arrived, ready                    uint64
	turnBytes                         uint64
	direct, directScales              uint64
	pieces, ranks, selections, zone   device.Divisor
	slotBytes, rowBytes               uint32
	scaleWords, pieceWords            uint32
	scaleRow, scaleZone, scaleWord    uint32
	what, tokens, hidden              uint32
	senders, block, free, clerks      uint32
	ids, weights, x, scales           uint64
	home, landings, described, ranges uint64
	filled, credits, out, outScales   uint64
}

// combineArgs are the arguments of a combine: the Combine of kernels/combine.cu.
type combineArgs struct {
	group                          device.Group
	shape                          shape
	state                          uint64
	heads, home, returned          uint64
	turnBytes                      uint64
	pieces, groups                 device.Divisor
	rowBytes, what, tokens, biases uint32
	senders, free                  uint32
	first, call                    uint32
	routed, landings, sent         uint64
	y, out                         uint64
	bias                           [2]uint64
	filled, credits                uint64
	weights                        uint64
}

// describeArgs are the arguments of a description: the Describe of kernels/describe.cuh.
type describeArgs struct {
	shape                  shape
	ranks, byExpert        uint32
	landings, sent         uint64
	arrivals               uint64
	tokens, sources        uint64
	selections, weights    uint64
	experts, expertWeights uint64
}

// weighArgs are the arguments of what gives a Routing weights, or tells its experts: the Weigh of kernels/describe.cu.
type weighArgs struct {
	home    uint64
	n, _    uint32
	weights uint64
	ids     uint64
}

// Kernels lists the kernels that handles and Counters on GPUs of an architecture ("sm_90a") may need, for whoever fills a cache of them beforehand. No size decides
// about the code, but the layout and the types of what is quantised and summed.
func Kernels(arch string) []kernel.Spec {
	var all []kernel.Spec
	for _, layout := range []Layout{RankMajor, ExpertMajor} {
		for _, from := range []weft.DType{weft.InvalidDType, weft.BFloat16, weft.Float16, weft.Float32} {
			all = append(all, dispatchKernel(layout, from, arch))
		}
	}
	for _, form := range []int{rankForm, partialForm, exactForm} {
		for _, of := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
			all = append(all, combineKernel(form, Partial, of, arch))
			if form != exactForm {
				all = append(all, combineKernel(form, PartialBySelection, of, arch))
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

func dispatchKernel(layout Layout, quantize weft.DType, arch string) kernel.Spec {
	name := fmt.Sprintf("dispatch, %v", layout)
	if quantize != weft.InvalidDType {
		name += fmt.Sprintf(", quantising %v", quantize)
	}
	s := kernelSpec(name, "dispatch.cu", arch, "dispatch.cuh", "number.cuh", "clerk.cuh", "quantize.cuh")
	s.Defines["WEFT_BY_EXPERT"] = "0"
	if layout.byExpert() {
		s.Defines["WEFT_BY_EXPERT"] = "1"
	}
	s.Defines["WEFT_QUANTIZE"] = strconv.Itoa(typeNumber(quantize))
	s.Defines["WEFT_DISPATCH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(dispatchArgs{})))
	return s
}

// The forms of combine: WEFT_FORM of kernels/combine.cu.
const (
	rankForm    = 1 // rank-major rows
	partialForm = 2 // rows by expert, summed at their rank first
	exactForm   = 3 // rows by expert, summed at home
)

func combineForm(s Spec) int {
	switch {
	case !s.Layout.byExpert():
		return rankForm
	case s.Reduction != Exact:
		return partialForm
	default:
		return exactForm
	}
}

func combineKernel(form int, reduction Reduction, of weft.DType, arch string) kernel.Spec {
	name, bySelection := fmt.Sprintf("combine %d of %v", form, of), "0"
	if reduction == PartialBySelection {
		name, bySelection = name+" by selection", "1"
	}
	s := kernelSpec(name, "combine.cu", arch, "sum.cuh")
	s.Defines["WEFT_FORM"], s.Defines["WEFT_BY_SELECTION"] = strconv.Itoa(form), bySelection
	s.Defines["WEFT_TYPE"] = strconv.Itoa(typeNumber(of))
	s.Defines["WEFT_COMBINE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(combineArgs{})))
	return s
}

func describeKernel(arch string) kernel.Spec {
	s := kernelSpec("describe", "describe.cu", arch, "describe.cuh")
	s.Defines["WEFT_DESCRIBE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(describeArgs{})))
	s.Defines["WEFT_WEIGH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(weighArgs{})))
	return s
}

// kernelSpec is that of a file and the headers that it includes, beside the one that all do.
func kernelSpec(name, file, arch string, includes ...string) kernel.Spec {
	headers := device.Headers()
	for _, h := range append(includes, "exchange.cuh") {
		headers[h] = kernelText(h)
	}
	return kernel.Spec{Name: "ep " + name, Source: kernelText(file), Headers: headers, Defines: map[string]string{}, Arch: arch}
}

func kernelText(file string) string {
	text, err := kernelFiles.ReadFile("kernels/" + file)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}
