package simd

import "golang.org/x/sys/cpu"

func detect() isa {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA || !x.HasF16C:
		return portable
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasBMI2:
		return avx512
	default:
		return avx2
	}
}
