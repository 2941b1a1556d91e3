package ep

import (
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/ep/internal/gpu"
)

// Kernels lists the kernels that handles and TokenCounters on GPUs of an architecture ("sm_90a")
// may need. Use it to fill a cache beforehand. Sizes do not change the code; the layout and the
// types that are quantised and summed do.
func Kernels(arch string) []kernel.Spec { return gpu.AllKernels(arch) }
