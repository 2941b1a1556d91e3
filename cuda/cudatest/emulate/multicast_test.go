package emulate_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
)

// A team is a multicast group of all devices of a rig, and what each has bound.
type team struct {
	*rig
	groups []*cuda.MulticastGroup
	mapped []*cuda.Virtual
	own    []*cuda.Virtual
	words  [][]uint32
}

// newTeam makes the group; the last devices do not bind memory.
func newTeam(t *testing.T, devices, unbound int, o emulate.Options) *team {
	m := &team{rig: newRig(t, devices, o)}
	options := cuda.AllocationOptions{Share: cuda.ShareFD}
	size, err := m.contexts[0].Device().Driver().MulticastGranularity(devices, 1, options)
	m.ok(err)
	first, err := m.contexts[0].NewMulticastGroup(devices, size, options)
	m.ok(err)
	m.groups = append(m.groups, first)
	for _, c := range m.contexts[1:] {
		fd, err := first.ExportFD()
		m.ok(err)
		g, err := c.ImportMulticastFD(fd, size)
		m.ok(errors.Join(err, fd.Close()))
		m.groups = append(m.groups, g)
	}
	for _, g := range m.groups {
		m.ok(g.Add())
	}
	for i, c := range m.contexts {
		own, err := c.AllocVirtual(size, options)
		m.ok(err)
		if i < devices-unbound {
			m.ok(m.groups[i].Bind(own.Allocations()[0]))
		}
		mapped, err := c.Map([]*cuda.Allocation{m.groups[i].Allocation})
		m.ok(err)
		m.own, m.mapped = append(m.own, own), append(m.mapped, mapped)
		m.words = append(m.words, slice(m.machine.Bytes(own.Pointer(), 4096)))
	}
	t.Cleanup(func() {
		var errs []error
		for i := range m.own {
			if i < devices-unbound {
				errs = append(errs, m.groups[i].Unbind())
			}
			errs = append(errs, m.mapped[i].Close(), m.own[i].Close())
		}
		if err := errors.Join(errs...); err != nil && !m.wild {
			t.Error(err)
		}
	})
	return m
}

// TestMulticast: a store reaches all devices, and sums are of what all of them hold.
func TestMulticast(t *testing.T) {
	for _, o := range []emulate.Options{{}, {Tear: true, Seed: 1}} {
		m := newTeam(t, 3, 0, o)
		for i, words := range m.words {
			for k := range 4 {
				words[8+k] = math.Float32bits(float32(int(1) << (2*i + k)))
				words[12+k] = uint32(0x3F80+i)<<16 | 0x4000 // bf16: about 1, and 2
				words[16+k] = 0x3C00<<16 | 0xC000           // fp16: 1 and -2
			}
		}
		f := m.function(1, `#include "ptx.cuh"
using namespace weft;
extern "C" __global__ void k(char *all, uint4 *out) {
	multimem_store16(all + 16 * threadIdx.x, make_uint4(threadIdx.x, 2, 3, 0xFFFFFFFF));
	fence_alias();
	fence_sys();
	out[0] = multimem_sum_f32(all + 32);
	out[1] = multimem_sum_bf16(all + 48);
	out[2] = multimem_sum_f16(all + 64);
}`)
		at, out := m.alloc(1, 12)
		m.ok(m.start(f, 1, 1, 2, m.mapped[1].Pointer(), at))
		m.ok(m.streams[1].Synchronize())
		for i, words := range m.words {
			for k := range uint32(2) {
				if got := [4]uint32(words[4*k:]); got != [4]uint32{k, 2, 3, math.MaxUint32} {
					t.Errorf("device %d has %v of thread %d", i, got, k)
				}
			}
		}
		for k := range 4 {
			if want := math.Float32bits(float32(int(21) << k)); out[k] != want {
				t.Errorf("sum of fp32: %#x, want %#x", out[k], want)
			}
			// 3 and 3/128 lies half-way between two numbers of bf16, of which 3 and 4/128 is even.
			if out[4+k] != 0x4042<<16|0x40C0 || out[8+k] != 0x4200<<16|0xC600 {
				t.Errorf("sums of bf16 %#x, of fp16 %#x", out[4+k], out[8+k])
			}
		}
	}
}

// TestMulticastNeedsBothFences: where stores may be late, a fence that no fence_alias came before orders none of
// those to a group.
func TestMulticastNeedsBothFences(t *testing.T) {
	late := func(fences string) (seen bool) {
		for seed := uint64(1); seed < 20 && !seen; seed++ {
			m := newTeam(t, 2, 0, emulate.Options{Tear: true, Seed: seed})
			f := m.function(0, `#include "ptx.cuh"
using namespace weft;
extern "C" __global__ void k(char *all, char *own, u32 *late) {
	multimem_store16(all + 16 * threadIdx.x, make_uint4(1, 1, 1, 1));
	`+fences+`
	uint4 v = load_once(own + 16 * threadIdx.x);
	if ((v.x & v.y & v.z & v.w) == 0) *late = 1;
}`)
			at, out := m.alloc(0, 1)
			m.ok(m.start(f, 0, 1, 4, m.mapped[0].Pointer(), m.own[0].Pointer(), at))
			m.ok(m.streams[0].Synchronize())
			seen = out[0] != 0
		}
		return seen
	}
	if !late("fence_sys();") {
		t.Error("fence_sys alone orders stores to a group")
	}
	if late("fence_alias(); fence_sys();") {
		t.Error("both fences do not order them")
	}
}

// TestMulticastRefuses: a group is for multimem instructions alone, and these are for groups alone.
func TestMulticastRefuses(t *testing.T) {
	for body, want := range map[string]string{
		"store16(all, v)":              "cannot reach",
		"v = load_relaxed_sys16(all)":  "cannot reach",
		"multimem_store16(own, v)":     "no multicast address",
		"multimem_store16(all + 4, v)": "not aligned",
		"multimem_sum_f32(own)":        "no multicast address",
	} {
		m := newTeam(t, 2, 0, emulate.Options{})
		m.refuses(body, want)
	}
	newTeam(t, 2, 1, emulate.Options{}).refuses("multimem_store16(all, v)", "1 of 2 devices")
}

func (m *team) refuses(body, want string) {
	m.Helper()
	m.wild = true
	f := m.function(0, `#include "ptx.cuh"
using namespace weft;
extern "C" __global__ void k(char *all, char *own) {
	uint4 v = make_uint4(1, 2, 3, 4);
	`+body+`;
}`)
	err := m.start(f, 0, 1, 1, m.mapped[0].Pointer(), m.own[0].Pointer())
	if err == nil {
		err = m.streams[0].Synchronize()
	}
	if err == nil || !strings.Contains(m.machine.Check().Error(), want) {
		m.Errorf("%s: %v, %v, want %q", body, err, m.machine.Check(), want)
	}
}
