package gpu

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/spec"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

//go:embed *.cu *.cuh
var files embed.FS

// Kernels are those that groups of so many ranks load on GPUs of an architecture: all that move data, and those that
// reduce elements of the types; without types, of all types.
func Kernels(arch string, ranks int, types ...weft.DType) []kernel.Spec {
	t := targetOf(arch, ranks)
	sources := []enginegpu.Source{
		barrierSource(t), directMoveSource(t), bulkMoveSource(t), moveLinesSource(t), messageSource(t), messageListSource(t),
		multicastMoveSource(t),
	}
	for e := words; e < encodings; e++ {
		sources = append(sources, moveSource(e, t), moveVSource(e, t), allGatherProgressSource(e, t),
			helpersBroadcastSource(e, t))
	}
	for d := weft.DType(1); int(d) < dtypes; d++ {
		if spec.Reducible(spec.AllReduce, weft.Sum, d) != nil || len(types) > 0 && !slices.Contains(types, d) {
			continue
		}
		sources = append(sources, oneShotSource(d, t), twoShotSource(d, t), reduceScatterSource(d, t),
			reduceScatterVSource(d, t), reduceScatterReadySource(d, t), directReduceSource(d, t), bulkReduceSource(d, t),
			helpersReduceSource(d, t), pushSource(d, t), relaxedSource(d, t))
		switch d {
		case weft.BFloat16, weft.Float16, weft.Float32:
			sources = append(sources, multicastReduceSource(d, t), normOneShotSource(d, t), normTwoShotSource(d, t))
		}
	}
	specs := make([]kernel.Spec, len(sources))
	for i, s := range sources {
		specs[i] = s.Spec
	}
	return specs
}

// source is the kernel in a file, which has the file's name, with the size of its parameter.
func source(name, file string, t target, parameter uintptr, defines map[string]string) enginegpu.Source {
	headers := device.Headers()
	for _, h := range []string{
		"slots.cuh", "lane.cuh", "encodings.cuh", "operands.cuh", "peers.cuh", "operation.cuh", "arrivals.cuh",
		"all_reduce.cuh", "direct.cuh", "direct_reduce.cuh", "helpers.cuh", "rows.cuh",
		"push.cuh", "plain.cuh", "all_reduce_norm.cuh", "chunks.cuh", "multicast.cuh",
	} {
		headers[h] = text(h)
	}
	defines = maps.Clone(defines)
	defines["WEFT_RANKS"] = strconv.Itoa(t.ranks)
	if t.ranks > 0 {
		name += fmt.Sprintf(", %d ranks", t.ranks)
	}
	defines["WEFT_PARAMETER_BYTES"] = strconv.Itoa(int(parameter))
	return enginegpu.Source{Spec: kernel.Spec{
		Name: name, Source: text(file), Headers: headers, Defines: defines,
		Kernels: []string{"weft::collective::" + strings.TrimSuffix(file, ".cu")}, Arch: t.arch,
	}}
}

// target is what kernels are compiled for.
type target struct {
	arch  string
	ranks int // of the communicator, if there are so few that loops over them are unrolled; or 0
}

// mostUnrolled is how many ranks that may be.
const mostUnrolled = 8

func targetOf(arch string, ranks int) target {
	if ranks > mostUnrolled {
		ranks = 0
	}
	return target{arch, ranks}
}

// reducing are the defines of a kernel that reduces elements of a type.
func reducing(t weft.DType) map[string]string {
	return map[string]string{
		"WEFT_ENCODING": strconv.Itoa(int(encodingOf(t))),
		"WEFT_TYPE":     strconv.Itoa(int(t)),
	}
}

// moving are those of a kernel that moves data by an encoding, and keeps all bits.
func moving(e encoding) map[string]string {
	return map[string]string{"WEFT_ENCODING": strconv.Itoa(int(e)), "WEFT_EXACT": "1"}
}

func text(file string) string {
	b, err := files.ReadFile(file)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(b)
}
