package device_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/cudatest/layout"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

// TestLayout: the structs and constants of the headers are the host's, for the compiler of every
// architecture and for the one that emulates.
func TestLayout(t *testing.T) {
	asserts := layout.Of("Record", reflect.TypeFor[device.Record](), nil) +
		layout.Of("Group", reflect.TypeFor[device.Group](), nil) +
		layout.Of("State", reflect.TypeFor[device.State](), nil) + layout.Of("Count", reflect.TypeFor[device.Count](), nil) +
		layout.Of("AlgorithmArgs", reflect.TypeFor[device.AlgorithmArgs](), nil) +
		layout.Of("PortChannel", reflect.TypeFor[device.PortChannel](), nil) +
		layout.Of("NicMemory", reflect.TypeFor[device.NicMemory](), nil) +
		layout.Of("NicQueue", reflect.TypeFor[device.NicQueue](), nil) +
		layout.Of("NicPeer", reflect.TypeFor[device.NicPeer](), nil) +
		layout.Of("Divisor", reflect.TypeFor[device.Divisor](), nil) +
		layout.Constants(map[string]int{
			"sizeof(Record)": device.RecordBytes, "sizeof(State)": device.StateBytes, "sizeof(Count)": device.CountBytes,
			"MAX_RANKS": device.MaxRanks, "RECORD_EMPTY": device.RecordEmpty, "RECORD_WRITTEN": device.RecordWritten,
			"CAUSE_TIMEOUT": device.CauseTimeout, "CAUSE_ABORT": device.CauseAbort,
			"CAUSE_STOPPED": device.CauseStopped, "CAUSE_MISMATCH": device.CauseMismatch,
			"CAUSE_LOST": device.CauseLost, "CAUSE_INVALID": device.CauseInvalid,
			"sizeof(PortLine)": device.PortLineBytes, "sizeof(PortHead)": device.PortHeadBytes,
			"PORT_PUT": device.PortPut, "PORT_SIGNAL": device.PortSignal, "PORT_ADD": device.PortAdd,
			"PORT_FLUSH": device.PortFlush,
			"CAUSE_NIC":  device.CauseNIC, "sizeof(NicState)": device.NicStateBytes,
			"(int)(NIC_FAILED >> 60)": device.NicFailed >> 60,
			"OPENING_BYTES":           device.OpeningBytes, "PACKET_BYTES": device.PacketBytes,
			"VALUES": device.Values, "PHASES": device.Phases,
		})
	// Every header is compiled, by itself: each includes what it uses.
	includes := ""
	for name := range device.Headers() {
		includes += "#include \"" + name + "\"\n"
	}
	source := includes + "namespace weft {\n" + asserts + "}\nextern \"C\" __global__ void nothing() {}\n"
	compile := func(t *testing.T, c kernel.Compiler, arch string) {
		t.Helper()
		// Arguments of a smaller domain are shorter, and the same up to their windows.
		word := strings.ReplaceAll(source, "sizeof(Group) ==", "sizeof(Group) - WIDER ==")
		word = strings.ReplaceAll(word, "sizeof(AlgorithmArgs) ==", "sizeof(AlgorithmArgs) - WIDER ==")
		word = strings.ReplaceAll(word, "sizeof(((AlgorithmArgs *)0)->group)", "sizeof(Group) - WIDER")
		word = strings.ReplaceAll(strings.ReplaceAll(word, "sizeof(((Group *)0)->window)", "72 * sizeof(char *)"),
			"MAX_RANKS ==", "MAX_RANKS + 8 ==")
		for ranks, source := range map[string]string{"64": word, "72": source} {
			s := kernel.Spec{
				Name: "layout", Source: source, Headers: device.Headers(), Arch: arch,
				Defines: map[string]string{device.DomainDefine: ranks},
			}
			code, err := c.Compile(t.Context(), s)
			if err != nil {
				t.Errorf("%+v", err)
			}
			if code.Log != "" {
				t.Errorf("the headers for %s: %s", arch, code.Log)
			}
		}
	}
	t.Run("NVRTC", func(t *testing.T) {
		cudatest.NVRTC(t)
		c, err := kernel.NVRTC()
		if err != nil {
			t.Fatal(err)
		}
		for _, arch := range archs {
			compile(t, c, arch)
		}
	})
	t.Run("emulator", func(t *testing.T) {
		emulate.Need(t)
		c, err := emulate.Compiler()
		if err != nil {
			t.Fatal(err)
		}
		compile(t, c, "sm_90a")
	})
}

// TestHeadersAreCopies: who changes what he got changes nobody else's.
func TestHeadersAreCopies(t *testing.T) {
	device.Headers()["ptx.cuh"] = ""
	if h := device.Headers(); h["ptx.cuh"] == "" || h["channel.cuh"] == "" {
		t.Errorf("headers %v", h)
	}
}

// TestDivisor: the quotient that kernels compute from a Divisor is at most one too few before they
// mend it, for every number.
func TestDivisor(t *testing.T) {
	edges := []uint32{0, 1, 2, 3, 5, 7, 28, 127, 128, 1000, 65535, 65536, 1<<31 - 1, 1 << 31, 1<<32 - 2, 1<<32 - 1}
	for _, by := range edges[1:] {
		d := device.NewDivisor(int(by))
		for _, near := range edges {
			for _, n := range []uint32{near, near * by, near*by - 1, near*by + by - 1} {
				q := uint32(uint64(n) * uint64(d.Inverse) >> 32)
				if want := n / by; q != want && q+1 != want {
					t.Errorf("%d / %d: estimate %d, want %d or one less", n, by, q, want)
				}
			}
		}
	}
}
