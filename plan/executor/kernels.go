package executor

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/plan/internal/gpu"
)

// Kernels lists the kernels that executors may need on GPUs of an architecture ("sm_90a"): two for all plans that
// reduce nothing, with packets and without, and two for each of the types that others reduce; without types, for all.
// Use it to fill a cache beforehand. Plans and sizes do not change the code.
func Kernels(arch string, types ...weft.DType) []kernel.Spec { return gpu.Kernels(arch, types...) }
