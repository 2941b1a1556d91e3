package gpu_test

import (
	"fmt"
	"testing"

	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// TestForDomain: kernels are compiled for the domain that they name if it has room, and what the caller has stays.
func TestForDomain(t *testing.T) {
	for _, c := range []struct {
		named string
		ranks int
		want  string
	}{
		{"", 1, ""},
		{"", 33, ""},
		{"", 64, ""},
		{"", 65, "72"},
		{"", 72, "72"},
		{"32", 1, "32"},
		{"32", 32, "32"},
		{"32", 33, "64"},
		{"32", 64, "64"},
		{"32", 65, "72"},
	} {
		t.Run(fmt.Sprintf("%d ranks, domain %q", c.ranks, c.named), func(t *testing.T) {
			s := enginegpu.Source{Spec: kernel.Spec{Defines: map[string]string{}}}
			if c.named != "" {
				s.Defines[device.DomainDefine] = c.named
			}
			if got := enginegpu.ForDomain(c.ranks, s)[0].Defines[device.DomainDefine]; got != c.want {
				t.Errorf("a domain of %q ranks, want %q", got, c.want)
			}
			if s.Defines[device.DomainDefine] != c.named {
				t.Error("the caller's source has changed")
			}
		})
	}
}
