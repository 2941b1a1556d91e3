package collective

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective/internal/gpu"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/engine/gpu/proxy"
)

// Kernels lists the kernels that groups of so many ranks on GPUs of an architecture ("sm_90a") may need: those that
// move data, and those that reduce elements of the types; without types, of all types. Use it to fill a cache
// beforehand; the one of groups on several hosts is among them. Sizes do not change the code. All groups of more than
// eight ranks have the same.
func Kernels(arch string, ranks int, types ...weft.DType) []kernel.Spec {
	return append(gpu.Kernels(arch, ranks, types...), proxy.Kernels(arch)...)
}
