package device_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// mostOfWrite is how many instructions a write may take that is neither signalled nor rung for.
const mostOfWrite = 120

// writes is a kernel that makes some of three writes, with operands of their own.
const writes = `#include "nic.cuh"
using namespace weft;
struct Arguments { NicQueue q; NicMemory dst, src; u64 to[2], from[2], bytes[2]; State *state; Group group; };
extern "C" __global__ void writes(const __grid_constant__ Arguments a) {
	Wait w(a.group, a.state, 1, 1);
	%s
}
`

// TestWriteInstructions counts the instructions of a write on its longest path, of those on which the queue has
// room and nothing is refused: by how many the longest path grows with a second write. A loop counts once, since
// it goes round only when another thread has claimed the entry.
func TestWriteInstructions(t *testing.T) {
	cudatest.NVRTC(t)
	c, err := kernel.NVRTC()
	if err != nil {
		t.Fatal(err)
	}
	count := func(arch, body string) int {
		t.Helper()
		spec := kernel.Spec{Name: "writes", Source: fmt.Sprintf(writes, body), Headers: device.Headers(), Arch: arch}
		code, err := c.Compile(t.Context(), spec)
		if err != nil || code.Log != "" {
			t.Fatalf("%s: %v %s", arch, err, code.Log)
		}
		text, size := kernelText(t, code.Image, "writes")
		// Each write stores 16 bytes, three times or four.
		n := longest(t, text, size, strings.Count(body, "a.q"))
		if n == 0 {
			t.Fatalf("%s: no path has the stores of %s", arch, body)
		}
		return n
	}
	for _, arch := range []string{"sm_90a", "sm_100a"} {
		for name, call := range map[string]string{
			"put":  "a.q.put(w, a.dst, a.to[%[1]d], a.src, a.from[%[1]d], a.bytes[%[1]d], NIC_DEFER);",
			"put8": "a.q.put8(w, a.dst, a.to[%[1]d], a.from[%[1]d], NIC_DEFER);",
			"add8": "a.q.add8(w, a.dst, a.to[%[1]d], a.from[%[1]d], NIC_DEFER);",
		} {
			once := fmt.Sprintf(call, 0)
			one, two := count(arch, once), count(arch, once+fmt.Sprintf(call, 1))
			t.Logf("%s: %s takes %d instructions; a kernel with one %d", arch, name, two-one, one)
			if two-one > mostOfWrite {
				t.Errorf("%s: %s takes %d instructions, %d are allowed", arch, name, two-one, mostOfWrite)
			}
		}
	}
}

// kernelText is the code of a kernel, and how many bytes of it are the kernel's own: functions that it calls follow.
func kernelText(t *testing.T, image []byte, name string) (text []byte, size uint64) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	s := f.Section(".text." + name)
	if s == nil {
		t.Fatalf("there is no kernel %s", name)
	}
	if text, err = s.Data(); err != nil {
		t.Fatal(err)
	}
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	size = uint64(len(text))
	for _, x := range symbols {
		if elf.ST_TYPE(x.Info) == elf.STT_FUNC && x.Value > 0 && f.Sections[x.Section] == s {
			size = min(size, x.Value)
		}
	}
	return text, size
}

// Opcodes of the machine, from Volta to Blackwell: the low 12 bits of an instruction of 16 bytes.
const (
	opNop, opBranch, opUniformBranch = 0x918, 0x947, 0x547
	opCall, opCallAbsolute           = 0x944, 0x943
	opExit, opReturn                 = 0x94d, 0x950
	opStore, opStoreGlobal           = 0x385, 0x986
)

// longest is how many instructions the longest path has from the beginning to an end on which vectors of 16 bytes
// are stored for so many entries and no function is called; 0 if there is none. Paths go back nowhere.
func longest(t *testing.T, text []byte, size uint64, entries int) int {
	t.Helper()
	type state struct{ at, stores int }
	n := int(size / 16)
	most := map[state]int{}
	open := map[state]bool{}
	var from func(state) int
	from = func(s state) int {
		if s.at < 0 || s.at >= n || open[s] {
			return 0
		}
		if m, ok := most[s]; ok {
			return m
		}
		open[s] = true
		defer delete(open, s)
		low, high := binary.LittleEndian.Uint64(text[16*s.at:]), binary.LittleEndian.Uint64(text[16*s.at+8:])
		op, always := low&0xfff, low>>12&0xf == 7
		stores, own := s.stores, 1
		next, ends := []int{s.at + 1}, false
		switch op {
		case opNop:
			own = 0
		case opStore, opStoreGlobal:
			if high>>9&7 == 6 { // 128 bits
				stores++
			}
		case opBranch, opUniformBranch:
			// The distance in units of 4 bytes: bits 34 to 81, and 8 more below them.
			distance := int64((low>>34|high<<30)<<16) >> 16 << 8
			to := s.at + 1 + int((distance|int64(low>>16&0xff))/4)
			if op == opBranch && always && high>>23&0xf == 7 {
				next = nil
			}
			next = append(next, to)
		case opCall, opCallAbsolute:
			if always {
				next = nil
			}
		case opExit, opReturn:
			ends = stores >= 3*entries
			if always {
				next = nil
			}
		}
		best := 0
		if ends {
			best = own
		}
		for _, i := range next {
			if m := from(state{i, stores}); m > 0 {
				best = max(best, own+m)
			}
		}
		most[s] = best
		return best
	}
	return from(state{})
}
