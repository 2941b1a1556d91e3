package device_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/nvrtc"
	"github.com/weftgo/weft/device"
)

// archs are the architectures that the headers are compiled for: the oldest, the first with bulk
// copies and dependent launches, the newest.
var archs = []string{"sm_80", "sm_90a", "sm_100a"}

// calls has a call of every function of ptx.cuh. Its operands are p and q in global memory, s and b
// in shared memory, v, l, f, u4 and u2; what it gives goes to keep.
var calls = map[string]string{
	"load_once":            "keep(load_once(p))",
	"load_once8":           "keep(load_once8(p))",
	"load_relaxed_sys16":   "keep(load_relaxed_sys16(p))",
	"load_relaxed_sys8":    "keep(load_relaxed_sys8(p))",
	"load_relaxed_sys4":    "keep(load_relaxed_sys4(p))",
	"load_relaxed_sys_u64": "keep(load_relaxed_sys_u64(p))",
	"load_relaxed_gpu4":    "keep(load_relaxed_gpu4(p))",
	"load_acquire_sys4":    "keep(load_acquire_sys4(p))",
	"load_acquire_sys16":   "keep(load_acquire_sys16(p))",
	"load_acquire_sys_u64": "keep(load_acquire_sys_u64(p))",

	"store16":               "store16(p, u4)",
	"store8":                "store8(p, u2)",
	"store_relaxed_sys16":   "store_relaxed_sys16(p, u4)",
	"store_relaxed_sys8":    "store_relaxed_sys8(p, u2)",
	"store_relaxed_sys4":    "store_relaxed_sys4(p, v)",
	"store_relaxed_sys_u64": "store_relaxed_sys_u64(p, l)",
	"store_relaxed_gpu4":    "store_relaxed_gpu4(p, v)",
	"store_release_sys4":    "store_release_sys4(p, v)",
	"store_release_sys_u64": "store_release_sys_u64(p, l)",

	"fence_sys":           "fence_sys()",
	"fence_gpu":           "fence_gpu()",
	"atomic_add_gpu4":     "keep(atomic_add_gpu4(p, v))",
	"atomic_cas_gpu4":     "keep(atomic_cas_gpu4(p, v, v + 1))",
	"add_relaxed_sys_u64": "add_relaxed_sys_u64(p, l)",

	"nanoseconds":       "keep(nanoseconds())",
	"pause":             "pause(v)",
	"wait_for_previous": "wait_for_previous()",
	"let_next_start":    "let_next_start()",

	"shared_address":     "keep(shared_address(s))",
	"barrier_init":       "barrier_init(b, 1)",
	"fence_barrier_init": "fence_barrier_init()",
	"barrier_expect":     "barrier_expect(b, 16)",
	"barrier_arrive":     "barrier_arrive(b)",
	"barrier_done":       "keep((u32)barrier_done(b, v))",
	"barrier_awaited":    "keep((u32)barrier_awaited(b, v))",
	"sync_some":          "sync_some(1, 32)",
	"sync_some_and":      "keep((u32)sync_some_and(1, 32, v != 0))",
	"shared_at":          "keep(shared_at(s))",
	"load_shared4":       "keep(load_shared4(l))",
	"load_shared8":       "keep(load_shared8(l))",
	"load_shared16":      "keep(load_shared16(l))",
	"store_shared4":      "store_shared4(l, v)",
	"or_shared4":         "or_shared4(l, v, v != 0)",
	"bulk_load":          "bulk_load(s, p, 16, b)",
	"bulk_store":         "bulk_store(p, s, 16)",
	"bulk_commit":        "bulk_commit()",
	"bulk_wait_read":     "bulk_wait_read()",
	"bulk_wait":          "bulk_wait()",
	"fence_async":        "fence_async()",
	"fence_async_shared": "fence_async_shared()",

	"add":       "keep(bits(add(f, f)))",
	"multiply":  "keep(bits(multiply(f, f)))",
	"fused":     "keep(bits(fused(f, f, f)))",
	"divide":    "keep(bits(divide(f, f)))",
	"root":      "keep(bits(root(f)))",
	"bits":      "keep(bits(f))",
	"number":    "keep(bits(number(v)))",
	"mma_bf16":  "keep(bits(mma_bf16(make_float4(f, f, f, f), u4, u2).x))",
	"to_bf16x2": "keep(to_bf16x2(f, f))",
	"to_f16x2":  "keep(to_f16x2(f, f))",
	"from_f16":  "keep(bits(from_f16((u16)v)))",
	"to_e4m3x2": "keep((u32)to_e4m3x2(f, f))",
	"to_e4m3":   "keep(to_e4m3(f))",
	"to_e5m2x2": "keep((u32)to_e5m2x2(f, f))",
	"to_e5m2":   "keep(to_e5m2(f))",

	"add64":      "keep(bits64(add64(number64(l), number64(l))))",
	"multiply64": "keep(bits64(multiply64(number64(l), number64(l))))",
	"fused64":    "keep(bits64(fused64(number64(l), number64(l), number64(l))))",
	"divide64":   "keep(bits64(divide64(number64(l), number64(l))))",
	"bits64":     "keep(bits64((double)f))",
	"number64":   "keep(bits64(number64(l)))",

	"multimem_store16":  "multimem_store16(p, u4)",
	"multimem_sum_f32":  "keep(multimem_sum_f32(p))",
	"multimem_sum_bf16": "keep(multimem_sum_bf16(p))",
	"multimem_sum_f16":  "keep(multimem_sum_f16(p))",
	"fence_alias":       "fence_alias()",

	"store_line":            "store_line(p, u4)",
	"store_shared16":        "store_shared16(l, u4)",
	"bulk_wait_read_before": "bulk_wait_read_before()",

	"computed":                   "computed(l)",
	"kept":                       "keep((u64)kept((char *)p))",
	"atomic_cas_relaxed_gpu_u64": "keep(atomic_cas_relaxed_gpu_u64(p, l, l + 1))",

	"load_relaxed_sys_u64x2":  "keep(load_relaxed_sys_u64x2(p).x); keep(load_relaxed_sys_u64x2(p).y)",
	"store_relaxed_sys_u64x2": "store_relaxed_sys_u64x2(p, make_ulonglong2(l, l))",
}

// declarations come before the probes, which are kernels of one call each.
const (
	declarations = `#include "ptx.cuh"
using namespace weft;
__device__ u32 place;
__device__ void keep(u32 w) { *(volatile u32 *)&place = w; }
__device__ void keep(u64 w) { keep((u32)w); keep((u32)(w >> 32)); }
__device__ void keep(uint2 w) { keep(w.x); keep(w.y); }
__device__ void keep(uint4 w) { keep(w.x); keep(w.y); keep(w.z); keep(w.w); }
`
	probe = `extern "C" __global__ void probe_%s(void *p, u32 v, u64 l, float f, uint4 u4, uint2 u2) {
	__shared__ alignas(16) char s[16];
	__shared__ u64 b[1];
	if (l == 1) { keep((u32)(u64)s); keep((u32)(u64)b); }
	%s;
}
`
)

// A wrapper is a function of ptx.cuh.
type wrapper struct {
	name     string
	since    int      // the first __CUDA_ARCH__ that has it
	until    int      // the first that does not; 0: all have it
	assembly []string // its instructions, for __CUDA_ARCH__ of 900
	above    string   // the heading and the comment above it
}

var (
	function    = regexp.MustCompile(`^(?:template <[^>]*> )?__device__ __forceinline__ [\w ]+?\*?\b(\w+)\(`)
	instruction = regexp.MustCompile(`asm(?: volatile)?\("([^"]*)"`)
	section     = regexp.MustCompile(`\b\d+(\.\d+)+ `)
	guard       = regexp.MustCompile(`^#if __CUDA_ARCH__ >= (\d+)$`)
)

// wrappers reads ptx.cuh.
func wrappers(t *testing.T) []*wrapper {
	t.Helper()
	var all []*wrapper
	heading, comment, headed := "", "", false
	since, until := 0, 0
	var current *wrapper
	for line := range strings.Lines(device.Headers()["ptx.cuh"]) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "// ----"):
			heading, comment, headed = line, "", true
		case strings.HasPrefix(line, "//") && headed:
			heading += " " + line
		case strings.HasPrefix(line, "//"):
			comment += " " + line
		case line == "":
			comment, headed = "", false
		case guard.MatchString(line):
			fmt.Sscan(guard.FindStringSubmatch(line)[1], &since)
		case line == "#else":
			since, until = 0, since
		case line == "#endif":
			since, until = 0, 0
		case function.MatchString(line):
			current = &wrapper{name: function.FindStringSubmatch(line)[1], since: since, until: until, above: heading + comment}
			all = append(all, current)
		}
		if m := instruction.FindStringSubmatch(line); m != nil {
			if current == nil {
				t.Fatalf("assembly outside of a function: %s", line)
			}
			if m[1] != "" { // else it only holds the compiler back
				current.assembly = append(current.assembly, m[1])
			}
		} else if strings.Contains(line, "asm") && !strings.HasPrefix(line, "//") {
			t.Errorf("assembly that this test does not understand: %s", line)
		}
	}
	return all
}

// mnemonic is the name of an instruction with all its qualifiers, without operands.
func mnemonic(assembly string) string {
	if strings.HasPrefix(assembly, "{ .reg") { // registers of its own come first
		_, assembly, _ = strings.Cut(assembly, "; ")
	}
	name, _, _ := strings.Cut(assembly, " ")
	return strings.TrimSuffix(name, ";")
}

// TestSections: every piece of assembly stands below the sections of the PTX ISA that it is from,
// and they name its instruction.
func TestSections(t *testing.T) {
	count := 0
	for _, w := range wrappers(t) {
		for _, a := range w.assembly {
			count++
			if !section.MatchString(w.above + " ") {
				t.Errorf("%s: no section of the PTX ISA above %q", w.name, a)
				continue
			}
			words := regexp.MustCompile(`[%\w]+`).FindAllString(w.above, -1)
			parts := regexp.MustCompile(`[._:, ;]+`).Split(mnemonic(a), -1)
			if mnemonic(a) == "mov.u64" {
				parts = regexp.MustCompile(`%[a-z]\w+`).FindAllString(a, -1) // a register is meant
			}
			if !slices.ContainsFunc(parts, func(s string) bool { return s != "" && slices.Contains(words, s) }) {
				t.Errorf("%s: what stands above %q names no part of it: %s", w.name, a, w.above)
			}
		}
	}
	if count < 30 {
		t.Errorf("only %d instructions were found", count)
	}
}

// TestWrappers compiles a call of every function for every architecture that has it, without a
// warning, and finds its instruction in what becomes of it.
func TestWrappers(t *testing.T) {
	all := wrappers(t)
	called := maps.Clone(calls)
	for _, w := range all {
		if calls[w.name] == "" {
			t.Errorf("ptx.cuh has %s, and nothing here calls it", w.name)
		}
		delete(called, w.name)
	}
	for _, name := range slices.Sorted(maps.Keys(called)) {
		t.Errorf("%s is called here, and ptx.cuh does not have it", name)
	}
	compiler := cudatest.NVRTC(t)
	for _, arch := range archs {
		var number int
		fmt.Sscanf(arch, "sm_%d", &number)
		number *= 10
		var here []*wrapper
		probes := declarations
		for _, w := range all {
			if number >= w.since && (w.until == 0 || number < w.until) && calls[w.name] != "" {
				here = append(here, w)
				probes += fmt.Sprintf(probe, w.name, calls[w.name])
			}
		}
		ptx := entries(compile(t, compiler, "compute"+strings.TrimPrefix(arch, "sm"), probes))
		for _, w := range here {
			if ptx[w.name] == "" {
				t.Errorf("%s for %s: no kernel that calls it", w.name, arch)
			}
			for _, a := range w.assembly {
				// wait_for_previous and let_next_start do nothing before Hopper.
				does := strings.Contains(ptx[w.name], mnemonic(a))
				if does != (number >= 900 || !strings.HasPrefix(a, "griddepcontrol")) {
					t.Errorf("%s for %s: %q in what becomes of it: %v", w.name, arch, mnemonic(a), does)
				}
			}
		}
		compile(t, compiler, arch, probes)
		t.Logf("%s: %d functions", arch, len(here))
	}
}

// entries are the bodies of the probes in PTX, by the functions that they call.
func entries(ptx string) map[string]string {
	of := make(map[string]string)
	for _, kernel := range strings.Split(ptx, ".entry probe_")[1:] {
		name, body, _ := strings.Cut(kernel, "(")
		of[name] = body
	}
	return of
}

// compile compiles probes and gives PTX, or a cubin.
func compile(t *testing.T, c *nvrtc.Compiler, arch, probes string) string {
	t.Helper()
	b, err := c.Compile(t.Context(), nvrtc.Program{
		Name: "probes", Source: probes, Headers: device.Headers(), Architecture: arch,
		Options: []string{"--std=c++17"},
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if b.Log != "" {
		t.Errorf("for %s: %s", arch, b.Log)
	}
	return string(b.Image)
}
