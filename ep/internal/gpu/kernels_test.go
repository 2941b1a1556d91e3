package gpu

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"testing"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/budget"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/cudatest/layout"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// mostSpecs bounds what has to be compiled for one architecture.
const mostSpecs = 230

// TestKernels compiles the kernels, without a warning, and holds registers, stack, spills and shared
// memory to testdata/kernels.txt. What was compiled is kept in the user's cache directory, so that only
// what has changed takes its time: a second a program. They are typical, and have all pairs of what makes
// programs different; with WEFT_TEST_ALL=1 they are all, for every architecture. After a change on purpose:
//
//	go test ./ep/internal/gpu -run TestKernels -update
func TestKernels(t *testing.T) {
	budget.Sample(t, func(arch string) []kernel.Spec {
		all := AllKernels(arch)
		if len(all) > mostSpecs {
			t.Errorf("%d programs for %s, at most %d are allowed", len(all), arch, mostSpecs)
		}
		return all
	}, typical)
}

// typical is a kernel without a type of rows, or for bf16: other types differ from it in conversions.
func typical(s kernel.Spec) bool {
	bf16 := strconv.Itoa(int(weft.BFloat16))
	return budget.Defines(s, "WEFT_TYPE", "", "0", bf16) && budget.Defines(s, "WEFT_QUANTIZE", "", "0", bf16)
}

// TestWideDomain compiles a program of each source for domains of more than 64 ranks, whose sets of
// ranks have two words: for one architecture, and with WEFT_TEST_ALL=1 for all.
func TestWideDomain(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a program of each source")
	}
	cache := budget.Cache(cudatest.NVRTC(t))
	archs := budget.Archs[len(budget.Archs)-1:]
	if emulate.Everything() {
		archs = budget.Archs
	}
	var specs []kernel.Spec
	for _, arch := range archs {
		all := AllKernels(arch)
		for _, i := range budget.OneOfEach(all) {
			s := all[i]
			s.Defines[device.DomainDefine] = "72"
			specs = append(specs, s)
		}
	}
	if _, err := budget.Compile(t.Context(), cache, specs); err != nil {
		t.Errorf("%+v", err)
	}
}

// argued is a program with assertions of the structs that the host fills, and of the numbers that
// both have.
type argued struct {
	kernel.Spec
	asserts string
}

func arguedPrograms(arch string) []argued {
	shared := layout.Of("Shape", reflect.TypeFor[shape](), nil) + layout.Of("Pair", reflect.TypeFor[pair](), nil) +
		layout.Constants(map[string]int{"COUNTS": countWords, "UNIT": spec.UnitBytes})
	return []argued{
		{
			dispatchKernel(dispatchForm{byExpert: true, kind: byValue, units: 1}, arch),
			shared + layout.Of("Dispatch", reflect.TypeFor[dispatchArgs](), nil) +
				layout.Constants(map[string]int{
					"SEND": flagSend, "RECEIVE": flagReceive, "ROUTE": flagRoute, "MOVE": flagMove, "IN_PLACE": flagInPlace,
					"WIDE_IDS": flagWideIDs, "POWER_OF_TWO": flagPowerOfTwo, "EXPONENTS": flagExponents,
					"COLUMN_SCALES": flagColumnScales, "PACKED": flagPacked, "ROW_PER_TOKEN": flagRowPerToken,
					"ROW_PER_SELECTION": flagRowPerSelection, "WEIGHTED": flagWeighted, "BULK": flagBulk,
					"ROW_GRADIENTS": flagRowGradients, "WEIGHT_GRADIENTS": flagWeightGradients,
					"CALL_BITS": callBits, "ROUTE / ROUTE": tagPrepare,
					"MOVE / ROUTE": tagDispatch, "(ROUTE | MOVE) / ROUTE": tagPrepareDispatch,
				}),
		},
		{
			combineKernel(combineForm{sums: spec.RankSums, of: weft.BFloat16, kind: byValue, group: 2}, arch),
			layout.Of("Combine", reflect.TypeFor[combineArgs](), nil),
		},
		{
			dispatchKernel(dispatchForm{kind: byFlag, units: 1, ports: true}, arch),
			layout.Of("PortChannel", reflect.TypeFor[device.PortChannel](), nil) +
				layout.Of("NicQueue", reflect.TypeFor[device.NicQueue](), nil) +
				layout.Of("PortLink", reflect.TypeFor[portLink](), nil) +
				layout.Of("Ports", reflect.TypeFor[portArgs](), nil) +
				layout.Of("RowCarry", reflect.TypeFor[carryArgs[dispatchArgs]](), nil) +
				layout.Constants(map[string]int{"(int)sizeof(PortHeader)": portHeaderBytes}),
		},
		{
			dispatchKernel(dispatchForm{kind: byFlag, units: 1, ports: true, once: true}, arch),
			layout.Constants(map[string]int{
				"LISTS": placeLists, "KEEPS_OURS": keepsOurs, "KEEPS_THEIRS": keepsTheirs,
			}),
		},
		{
			combineKernel(combineForm{sums: spec.RankSums, of: weft.BFloat16, kind: byFlag, group: 4, ports: true}, arch),
			layout.Of("SumCarry", reflect.TypeFor[carryArgs[combineArgs]](), nil),
		},
		{rowMapKernel(rowMapForm{}, arch), layout.Of("RowMap", reflect.TypeFor[rowMapArgs](), nil)},
		{pushKernel(weft.InvalidDType, false, arch), layout.Of("Push", reflect.TypeFor[pushArgs](), nil) +
			layout.Constants(map[string]int{
				"UNITS": spec.MostUnits(spec.Spec{}),
			})},
		{pullKernel(pullForm{"RANKS", weft.BFloat16}, arch), layout.Of("Pull", reflect.TypeFor[pullArgs](), nil) +
			layout.Constants(map[string]int{
				"UNITS": spec.PullUnits,
			})},
		{gradientKernel(weft.BFloat16, arch), layout.Of("Gradients", reflect.TypeFor[gradientArgs](), nil) +
			layout.Constants(map[string]int{
				"32 * MOST_WARPS": mostGradientThreads,
				"DEPTH":           spec.ProductDepth,
			})},
		{tokenCountsKernel(arch), layout.Of("Shape", reflect.TypeFor[shape](), nil) +
			layout.Of("TokenCounts", reflect.TypeFor[tokenCountsArgs](), nil) +
			layout.Constants(map[string]int{
				"THREADS": countThreads, "SHARE": countShare,
				"MAX_RANKS": device.MaxRanks,
			})},
		{copyKernel(arch), layout.Of("Describe", reflect.TypeFor[describeArgs](), nil) +
			layout.Of("Copy", reflect.TypeFor[copyArgs](), nil) +
			layout.Of("Strides", reflect.TypeFor[spec.Strides](), nil) + layout.Of("List", reflect.TypeFor[list](), nil) +
			layout.Constants(map[string]int{"FLIGHT * UNIT": copyPiece, "SHARE": copyShare})},
		{describeKernel(arch), layout.Of("Describe", reflect.TypeFor[describeArgs](),
			map[string]string{"expertWeights": "expert_weights"}) +
			layout.Of("SetWeights", reflect.TypeFor[setWeightsArgs](), nil)},
	}
}

// instances begins what a source has of kernels, behind its structs and functions.
var instances = regexp.MustCompile(`(?m)^namespace weft::\w+ {$`)

// asserting is the source up to its kernels, with the assertions and a kernel of nothing.
func (a argued) asserting(t *testing.T) kernel.Spec {
	t.Helper()
	at := instances.FindStringIndex(a.Source)
	if at == nil {
		t.Fatalf("%s has no kernels", a.Name)
	}
	s := a.Spec
	s.Kernels = nil
	s.Defines[device.DomainDefine] = fmt.Sprint(device.MaxRanks) // the host's structs are those of the largest
	s.Source = s.Source[:at[0]] + "\nnamespace weft {\n" + a.asserts + "}\nextern \"C\" __global__ void nothing() {}\n"
	return s
}

// TestArguments: the structs that kernels take are the host's, field by field.
func TestArguments(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) kernel.Compiler{
		"NVRTC": func(t *testing.T) kernel.Compiler {
			cudatest.NVRTC(t)
			c, err := kernel.NVRTC()
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		"emulator": func(t *testing.T) kernel.Compiler {
			emulate.Need(t)
			c, err := emulate.Compiler()
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			compiler := open(t)
			for _, p := range arguedPrograms("sm_90a") {
				if _, err := compiler.Compile(t.Context(), p.asserting(t)); err != nil {
					t.Errorf("%+v", err)
				}
			}
		})
	}
}
