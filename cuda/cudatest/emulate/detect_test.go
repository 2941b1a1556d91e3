package emulate_test

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
)

// TestDetect: what a kernel must not do fails its launch, with the code of a GPU, and the machine
// says who did it.
func TestDetect(t *testing.T) {
	tests := map[string]struct {
		body string
		code error
		say  []string
	}{
		"past the end": {
			"store_relaxed_sys4(p + 66, 1);", cuda.ErrIllegalAddress,
			[]string{"block 0, thread 0", "store_relaxed_sys4 of 4 bytes", "cannot reach"},
		},
		"over the end": {
			"load_relaxed_sys16((char *)p + 240 + 16 * (threadIdx.x / 31));", cuda.ErrIllegalAddress,
			[]string{"thread 31", "load_relaxed_sys16"},
		},
		"null": {"load_once(nullptr);", cuda.ErrIllegalAddress, []string{"load_once"}},
		"another device's": {
			"store_release_sys4(q, 1);", cuda.ErrIllegalAddress, []string{"store_release_sys4"},
		},
		"misaligned": {
			"store16(p + 1, make_uint4(1, 2, 3, 4));", cuda.ErrMisalignedAddress,
			[]string{"store16 of 16 bytes", "not aligned"},
		},
		"shared as global": {
			"__shared__ uint4 s; store16(&s, make_uint4(1, 2, 3, 4));", cuda.ErrIllegalAddress,
			[]string{"store16"},
		},
		"plain null": {
			"if (threadIdx.x == 7) *(volatile u32 *)8 = 1;", cuda.ErrIllegalAddress,
			[]string{"thread 7", "0x8", "no memory"},
		},
		"plain jump": {
			"if (threadIdx.x == 7) ((void (*)())(p + 100000000))();", cuda.ErrIllegalAddress,
			[]string{"thread 7"},
		},
		"divergent barrier": {
			"if (threadIdx.x < 16)\n__syncthreads();\nelse\n__syncthreads();", cuda.ErrLaunchFailed,
			[]string{"thread 16: divergent barriers", "thread 15"},
		},
		"missing barrier": {
			"if (threadIdx.x < 16) __syncthreads(); else __syncwarp(0xFFFF0001u);", cuda.ErrLaunchFailed,
			[]string{
				"deadlock", "32 threads", "thread 0: __syncthreads at kernel.cu:",
				"thread 16: __syncwarp with mask 0xffff0001",
			},
		},
		"barrier of half a warp": {
			"sync_some(1, 16);", cuda.ErrLaunchFailed, []string{"thread 0", "barrier 1 of 16 threads", "whole warps"},
		},
		"missing barrier of some": {
			"if (threadIdx.x == 0) sync_some(3, 32); else __syncthreads();", cuda.ErrLaunchFailed,
			[]string{"deadlock", "thread 0: sync_some 3", "thread 1: __syncthreads at kernel.cu:"},
		},
		"not in the mask": {
			"__syncwarp(0xFFFFu);", cuda.ErrLaunchFailed,
			[]string{"thread 16", "lane 16 is not in its own mask 0xffff"},
		},
		"divergent warp": {
			"if (threadIdx.x == 0) __ballot_sync(~0u, 1); else __any_sync(~0u, 1);", cuda.ErrLaunchFailed,
			[]string{"divergent warp", "__any_sync", "thread 0 at __ballot_sync"},
		},
		"masks apart": {
			"if (threadIdx.x == 0) __syncwarp(3); else if (threadIdx.x == 1) __syncwarp(7);", cuda.ErrLaunchFailed,
			[]string{"deadlock", "mask 0x3", "mask 0x7"},
		},
		"polls for ever": {
			"while (load_relaxed_sys4(p) == 0) pause(10);", cuda.Code(702),
			[]string{"takes too long", "polls"},
		},
		"bulk store not read": {
			"__shared__ uint4 s; bulk_store(p, &s, 16); bulk_commit();",
			cuda.ErrLaunchFailed,
			[]string{"bulk_wait_read"},
		},
		"bulk of 8 bytes": {
			"__shared__ uint4 s; bulk_store(p, &s, 8);", cuda.ErrMisalignedAddress,
			[]string{"bulk_store of 8 bytes"},
		},
		"bulk from global": {"bulk_store(p, p, 16);", cuda.ErrIllegalAddress, []string{"not the block's shared memory"}},
		"bulk to nowhere": {
			"__shared__ uint4 s; bulk_store(p + 64, &s, 16);", cuda.ErrIllegalAddress,
			[]string{"bulk_store of 16 bytes"},
		},
		"bulk load not awaited": {
			"__shared__ uint4 s; __shared__ u64 b; if (threadIdx.x == 0) { barrier_init(&b, 1); " +
				"bulk_load(&s, p, 16, &b); }", cuda.ErrLaunchFailed,
			[]string{"before a bulk load"},
		},
		"atomic": {
			"if (threadIdx.x == 3) atomicAdd(p + 66, 1);", cuda.ErrIllegalAddress,
			[]string{"thread 3: an atomic operation"},
		},
		"stack": {
			"volatile char deep[70000]; for (int i = 0; i < 70000; i++) deep[i] = 1;",
			cuda.ErrLaunchFailed,
			[]string{"stack"},
		},
	}
	// One program has them all, so that it is compiled once.
	source, names := "#include \"flags.cuh\"\nusing namespace weft;\n", map[string]string{}
	for i, name := range slices.Sorted(maps.Keys(tests)) {
		names[name] = fmt.Sprintf("k%d", i)
		source += fmt.Sprintf("extern \"C\" __global__ void %s(u32 *p, u32 *q) {\n%s\n}\n", names[name], tests[name].body)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, emulate.Options{Limit: 300 * time.Millisecond})
			r.wild = true
			f := r.named(0, source, names[name])
			p, words := r.alloc(0, 66)
			q, _ := r.alloc(1, 64)
			err := r.start(f, 0, 1, 32, p, q)
			if !errors.Is(err, tt.code) {
				t.Fatalf("the launch gives %v, want %v", err, tt.code)
			}
			for _, w := range words {
				if w != 0 && name != "stack" {
					t.Errorf("memory was written: %v", words)
					break
				}
			}
			if err := r.streams[0].Synchronize(); err == nil {
				t.Error("the context is not lost")
			}
			text := r.machine.Check().Error()
			for _, say := range append(tt.say, "kernel "+names[name]+": ") {
				if !strings.Contains(text, say) {
					t.Errorf("the machine does not say %q but\n%s", say, text)
				}
			}
			// Other devices, and the emulator itself, are well.
			good := r.function(1,
				`extern "C" __global__ void k(unsigned *p) { p[threadIdx.x] = __shfl_sync(~0u, threadIdx.x, 5); }`)
			r.ok(r.start(good, 1, 1, 32, q))
			if got := slice(r.machine.Bytes(q, 4))[0]; got != 5 {
				t.Errorf("the next launch gives %d", got)
			}
		})
	}
}

// TestPeerAccess: what was another device's is reached once peer access is there.
func TestPeerAccess(t *testing.T) {
	r := newRig(t, 2, emulate.Options{})
	f := r.function(0, "#include \"ptx.cuh\"\nextern \"C\" __global__ void k(unsigned *p) { "+
		"weft::store_release_sys4(p + threadIdx.x, 7); }")
	q, words := r.alloc(1, 32)
	r.ok(r.contexts[0].EnablePeer(r.contexts[1]))
	r.ok(r.start(f, 0, 1, 32, q))
	if words[31] != 7 {
		t.Errorf("%v", words)
	}
	r.ok(r.contexts[0].DisablePeer(r.contexts[1]))
}

// TestLimits: what no device can run does not compile, load or start.
func TestLimits(t *testing.T) {
	r := newRig(t, 1, emulate.Options{})
	compile := func(source string) error {
		_, err := r.cache.Load(t.Context(), spec(source))
		return err
	}
	kernel := func(body string) string { return `extern "C" __global__ void k(unsigned *p) {` + body + `}` }
	for name, tt := range map[string]struct{ source, say string }{
		"static shared memory": {
			kernel("__shared__ unsigned s[12289]; s[*p] = 1; __syncthreads(); *p = s[0];"),
			"49156 bytes of static shared memory",
		},
		"shared at large": {"__shared__ unsigned s[12289];\n" +
			kernel("s[*p] = 1; __syncthreads(); *p = s[0];"), "bytes of static shared memory"},
		"dynamic at large": {
			"namespace a { extern __shared__ char s[]; }\n" + kernel("a::s[0] = 1;"),
			"declare it in the functions",
		},
		"no kernel": {"__global__ void k() {}", "no kernel"},
		"assembly":  {kernel(`asm volatile("nanosleep.u32 %0;" ::"r"(1));`), "Error"},
		"includes":  {"#include <stdio.h>\n" + kernel(""), "stdio.h"},
		"mistakes":  {kernel("nothing();"), "kernel.cu:1"},
	} {
		if err := compile(tt.source); err == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.ok(compile(kernel("__shared__ unsigned s[12288]; s[*p] = 1; __syncthreads(); *p = s[0];")))
	f := r.function(0, `extern "C" __global__ void __launch_bounds__(32 * 2, 1) k(unsigned *p) {}`)
	p, _ := r.alloc(0, 1)
	r.ok(r.start(f, 0, 1, 64, p))
	r.wild = true
	if err := r.start(f, 0, 1, 65, p); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("more threads than the launch bounds: %v", err)
	}
	if _, err := f.Prepare(cuda.LaunchConfig{}, p, uint32(1)); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("an argument too many: %v", err)
	}
	if _, err := f.Prepare(cuda.LaunchConfig{}, uint32(1)); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("an argument of 4 bytes for a pointer: %v", err)
	}
}

// TestNoLoader: an image on a machine that nothing was attached to is refused, and any other image
// is not looked at.
func TestNoLoader(t *testing.T) {
	r := newRig(t, 1, emulate.Options{})
	cubin, err := r.cache.Load(t.Context(), spec(`extern "C" __global__ void k() {}`))
	r.ok(err)
	m := cudatest.New(cudatest.Config{})
	d, err := m.Open()
	r.ok(err)
	c, err := d.Devices()[0].Primary()
	r.ok(err)
	if _, err := c.LoadModule(cubin.Image()); !errors.Is(err, cuda.ErrInvalidValue) {
		t.Errorf("without a loader: %v", err)
	}
	other, err := r.contexts[0].LoadModule(cubin.Image()[:8])
	r.ok(err)
	r.ok(other.Close())
}

// TestFaultsOfGo: the emulator listens to faults, and those of Go remain panics.
func TestFaultsOfGo(t *testing.T) {
	r := newRig(t, 1, emulate.Options{})
	r.function(0, `extern "C" __global__ void k() {}`)
	defer func() {
		if _, ok := recover().(runtime.Error); !ok {
			t.Error("no panic")
		}
	}()
	var p *int
	t.Error(*p)
}
