package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Need is what a machine must be ready for.
type Need string

// The needs.
const (
	NeedHost Need = "host" // ranks on CPUs
	NeedGPU  Need = "gpu"  // and on GPUs
)

// Needs are all of them.
var Needs = []Need{NeedHost, NeedGPU}

// Verdict is what findings amount to.
type Verdict struct {
	Ready    bool     `json:"ready"`
	GPU      bool     `json:"gpu_ready"` // ranks can work on GPUs
	Text     string   `json:"verdict"`
	Problems []string `json:"problems"` // what will not work, or is needed and missing
}

// Judge says whether a machine is ready.
func Judge(m Machine, findings []Finding, need Need) Verdict {
	v := Verdict{Problems: []string{}}
	for _, f := range findings {
		if f.Grade == Bad {
			v.Problems = append(v.Problems, fmt.Sprintf("%s: %s - %s", f.Name, f.Value, f.Meaning))
		}
	}
	gpus := usable(m.CUDA)
	filled := func(c Cache) bool { return c.Kernels > 0 && c.Err == "" }
	kernels := m.Compiler.Path != "" || slices.ContainsFunc(m.Caches, filled)
	v.GPU = gpus > 0 && kernels
	text := "the host; no GPU"
	switch {
	case v.GPU && gpus == 1:
		text = "the host and 1 GPU"
	case v.GPU:
		text = fmt.Sprintf("the host and %d GPUs", gpus)
	case gpus > 0:
		text = "the host; GPUs lack kernels, and NVRTC to compile them"
	}
	if need == NeedGPU && !v.GPU {
		v.Problems = append(v.Problems, "ranks cannot work on GPUs here, which is required")
	}
	v.Ready = len(v.Problems) == 0
	if v.Text = "ready on " + text; !v.Ready {
		v.Text = "not ready: " + strings.Join(v.Problems, "; ")
	}
	return v
}

// usable counts the GPUs that can hold windows.
func usable(c CUDA) int {
	n := 0
	for _, d := range c.Devices {
		if d.VMM {
			n++
		}
	}
	return n
}
