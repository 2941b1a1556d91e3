package link

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
)

func TestKernelsCompile(t *testing.T) {
	cudatest.NVRTC(t)
	cache := kernel.New(kernel.Options{Dir: t.TempDir()})
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
		specs := Kernels(arch)
		cubins, err := cache.LoadAll(t.Context(), specs)
		if err != nil {
			t.Fatalf("%+v", err)
		}
		for i, spec := range specs {
			names := entries[spec.Name]
			if len(names) == 0 {
				t.Errorf("%s has no kernels", spec.Name)
			}
			for _, name := range names {
				if !bytes.Contains(cubins[i].Image(), []byte(".text."+name+"\x00")) {
					t.Errorf("%s for %s has no kernel %s", spec.Name, arch, name)
				}
			}
			if cubins[i].Log != "" {
				t.Errorf("%s for %s: %s", spec.Name, arch, cubins[i].Log)
			}
		}
	}
}

func TestBulkCopiesAreHoppers(t *testing.T) {
	for arch, want := range map[string]bool{
		"sm_80": false, "sm_89": false, "sm_90": true, "sm_90a": true,
		"sm_100a": true, "sm_120a": true, "": false,
	} {
		has := slices.ContainsFunc(Kernels(arch), func(s kernel.Spec) bool { return strings.HasSuffix(s.Name, "bulk") })
		if has != want {
			t.Errorf("%q: %v", arch, has)
		}
	}
}

func TestEveryKernelHasItsEntry(t *testing.T) {
	for _, spec := range Kernels("sm_90a") {
		if declared := strings.Count(spec.Source, `extern "C" __global__`); declared != len(entries[spec.Name]) {
			t.Errorf("%s declares %d kernels, and %d are known", spec.Name, declared, len(entries[spec.Name]))
		}
	}
}

func TestSumOfIsTheSumOfThePattern(t *testing.T) {
	for _, words := range []int{0, 1, 2, 4, 7, 1000} {
		want := uint32(0)
		for i := range words {
			want += wordAt(77, i)
		}
		if got := sumOf(uint64(words), 77); got != want {
			t.Errorf("%d words: %d, want %d", words, got, want)
		}
	}
	// 1 + 2 + ... of 2^33 words: their number of pairs has more than 64 bits before it is halved.
	if got, want := sumOf(1<<33, 3), uint32(0); got != want {
		t.Errorf("2^33 words: %d, want %d", got, want)
	}
}
