package ep

import (
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/ep/internal/gpu"
)

// Kernels lists the kernels that handles and Counters on GPUs of an architecture ("sm_90a") may
// need, for whoever fills a cache of them beforehand. No size decides about the code, but the
// layout and the types of what is quantised and summed.
func Kernels(arch string) []kernel.Spec { return gpu.AllKernels(arch) }
