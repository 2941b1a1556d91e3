package cuda_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/nvrtc"
)

// add is the kernel of the scenario: p[i] += v, i < n.
const add = `extern "C" __global__ void add(int *p, int n, int v) {
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) p[i] += v;
}`

// TestScenario runs on the driver made of Go what TestScenarioOnGPU runs on the real one, so that
// each can be held against the other.
func TestScenario(t *testing.T) {
	m, d := open(t, cudatest.Config{Devices: 2})
	m.Kernel("add", func(c *cudatest.Call, p cuda.Pointer, n, v int32) {
		words := cudatest.Slice[int32](c, p, int(n))
		for i := range words {
			words[i] += v
		}
	})
	scenario(t, d, func(string) []byte { return []byte("image") })
}

// TestScenarioOnGPU needs a GPU and NVRTC. WEFT_REQUIRE_GPU=1 turns the skip into a failure.
func TestScenarioOnGPU(t *testing.T) {
	d, err := cuda.Open()
	if err != nil {
		if os.Getenv("WEFT_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skipf("needs a GPU: %v", err)
	}
	compiler := cudatest.NVRTC(t)
	scenario(t, d, func(architecture string) []byte {
		b, err := compiler.Compile(t.Context(), nvrtc.Program{Name: "add.cu", Source: add, Architecture: architecture})
		ok(t, err)
		return b.Image
	})
}

// A stage is a device with the kernel loaded.
type stage struct {
	*testing.T
	c *cuda.Context
	s *cuda.Stream
	f *cuda.Function
}

func scenario(t *testing.T, d *cuda.Driver, image func(architecture string) []byte) {
	c := primary(t, d, 0)
	architecture, err := c.Device().Architecture()
	ok(t, err)
	module, err := c.LoadModule(image(architecture))
	keep(t, module, err)
	f, err := module.Function("add")
	ok(t, err)
	s := stage{t, c, newStream(t, c), f}
	for name, run := range map[string]func(stage){
		"launch": launches, "graph": graphs, "virtual": virtual, "host": hosts, "inspect": inspects,
		"events": events, "refusals": refusals,
	} {
		t.Run(name, func(t *testing.T) { run(stage{t, s.c, s.s, s.f}) })
	}
	if len(d.Devices()) > 1 {
		t.Run("peers", func(t *testing.T) { peers(stage{t, s.c, s.s, s.f}, primary(t, d, 1)) })
	}
}

const words = 5000

// words reads 32-bit words back.
func (s stage) words(p cuda.Pointer) []int32 {
	s.Helper()
	b := make([]byte, 4*words)
	ok(s.T, s.c.Download(b, p))
	all := make([]int32, words)
	for i := range all {
		all[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return all
}

// expect wants every word to be v.
func (s stage) expect(p cuda.Pointer, v int32) {
	s.Helper()
	ok(s.T, s.s.Wait(s.Context()))
	if got := s.words(p); slices.ContainsFunc(got, func(w int32) bool { return w != v }) {
		s.Errorf("words %v..., want %d", got[:4], v)
	}
}

func (s stage) prepare(c cuda.LaunchConfig, p cuda.Pointer, v int32) (*cuda.Launch, *int32) {
	s.Helper()
	l, err := s.f.Prepare(c, p, int32(words), v)
	ok(s.T, err)
	value, err := cuda.Arg[int32](l, 2)
	ok(s.T, err)
	return l, value
}

func (s stage) zeroed() cuda.Pointer {
	s.Helper()
	m := alloc(s.T, s.c, 4*words)
	ok(s.T, s.s.Memset(m.Pointer(), 0, 4*words))
	return m.Pointer()
}

// wide is the shape that most launches have.
var wide = cuda.LaunchConfig{Grid: cuda.Dim{X: 8}, Block: cuda.Dim{X: 256}}

func launches(s stage) {
	p := s.zeroed()
	configs := []cuda.LaunchConfig{
		{},
		wide,
		{Grid: cuda.Dim{X: 8}, Block: cuda.Dim{X: 64}, Shared: 40 << 10, Cooperative: true},
		{Grid: cuda.Dim{X: 4}, Block: cuda.Dim{X: 128}, Dependent: true},
	}
	if s.c.Device().Has(cuda.ClusterLaunch) {
		configs = append(configs, cuda.LaunchConfig{Grid: cuda.Dim{X: 16}, Block: cuda.Dim{X: 32}, Cluster: cuda.Dim{X: 4}})
	}
	total := int32(0)
	for i, c := range configs {
		// A dependent launch of this kernel, which does not wait by itself, must not overlap
		// another.
		ok(s.T, s.s.Synchronize())
		l, value := s.prepare(c, p, 0)
		for _, *value = range []int32{int32(i + 1), 100} {
			ok(s.T, l.Start(s.s))
			ok(s.T, s.s.Synchronize())
			total += *value
		}
	}
	s.expect(p, total)
	if a, err := s.f.Attributes(); err != nil || a.Registers == 0 || a.MaxThreads < 256 || a.BinaryVersion < 50 {
		s.Errorf("attributes %+v, %v", a, err)
	}
	if n, err := s.f.Occupancy(256, 0); err != nil || n < 1 {
		s.Errorf("occupancy %d, %v", n, err)
	}
	if s.c.Device().Has(cuda.ClusterLaunch) {
		if n, err := s.f.MaxClusters(configs[len(configs)-1]); err != nil || n < 1 {
			s.Errorf("%d clusters, %v", n, err)
		}
	}
}

func graphs(s stage) {
	p, q := s.zeroed(), s.zeroed()
	ok(s.T, s.s.Synchronize())
	l, value := s.prepare(wide, p, 1)
	graph, err := s.s.Capture(func() error {
		for *value = range int32(4) {
			if err := l.Start(s.s); err != nil {
				return err
			}
		}
		return s.s.Copy(q, p, 4*words)
	})
	keep(s.T, graph, err)
	if n, err := graph.Nodes(); err != nil || n != 5 {
		s.Errorf("%d nodes, %v", n, err)
	}
	exec, err := graph.Instantiate()
	keep(s.T, exec, err)
	ok(s.T, exec.Upload(s.s))
	for range 3 {
		ok(s.T, exec.Launch(s.s))
	}
	s.expect(q, 3*(0+1+2+3))
}

func virtual(s stage) {
	if !s.c.Device().Has(cuda.VirtualMemory) || !s.c.Device().Has(cuda.HandleTypeFD) {
		s.Skip("the device has no virtual memory to share")
	}
	v, err := s.c.AllocVirtual(4*words, cuda.AllocationOptions{Share: cuda.ShareFD})
	keep(s.T, v, err)
	ok(s.T, s.s.Memset(v.Pointer(), 0, v.Size()))
	file, err := v.Allocations()[0].ExportFD()
	ok(s.T, err)
	imported, err := s.c.ImportFD(file, v.Size())
	ok(s.T, errors.Join(err, file.Close()))
	again, err := s.c.Map([]*cuda.Allocation{imported})
	keep(s.T, again, err)
	if again.Pointer() == v.Pointer() {
		s.Error("both mappings are in one place")
	}
	l, _ := s.prepare(wide, again.Pointer(), 7)
	ok(s.T, l.Start(s.s))
	s.expect(v.Pointer(), 7)
	retained, err := s.c.RetainAllocation(v.Pointer().Add(64), v.Size())
	keep(s.T, retained, err)
	if share, err := retained.Share(); err != nil || share != cuda.ShareFD {
		s.Errorf("share %#x, %v", share, err)
	}
}

func hosts(s stage) {
	h, err := s.c.AllocHost(4*words, cuda.HostOptions{})
	keep(s.T, h, err)
	clear(h.Bytes())
	l, _ := s.prepare(wide, h.Pointer(), 9) // the kernel writes to the host's memory
	ok(s.T, l.Start(s.s))
	ok(s.T, s.s.Synchronize())
	if want := bytes.Repeat([]byte{9, 0, 0, 0}, words); !bytes.Equal(h.Bytes(), want) {
		s.Errorf("the host sees %v...", h.Bytes()[:8])
	}
	p := s.zeroed()
	ok(s.T, s.s.Upload(p, h.Bytes()))
	s.expect(p, 9)
	ok(s.T, s.s.Memset32(p, 5, words))
	ok(s.T, s.s.Download(h.Bytes(), p))
	ok(s.T, s.s.Synchronize())
	if h.Bytes()[4*words-4] != 5 {
		s.Errorf("downloaded %v", h.Bytes()[4*words-4:])
	}
}

func inspects(s stage) {
	plain := alloc(s.T, s.c, 1<<20)
	host, err := s.c.AllocHost(1<<16, cuda.HostOptions{})
	keep(s.T, host, err)
	for name, tt := range map[string]struct {
		p    cuda.Pointer
		kind cuda.MemoryKind
		base cuda.Pointer
	}{
		"device":       {plain.Pointer().Add(4097), cuda.OnDevice, plain.Pointer()},
		"host":         {host.Pointer().Add(7), cuda.Host, host.Pointer()},
		"unregistered": {4096, cuda.Unregistered, 0},
	} {
		got, err := s.c.Inspect(tt.p)
		wrong := err != nil || got.Kind != tt.kind || got.Virtual || got.Managed
		if tt.kind == cuda.OnDevice {
			wrong = wrong || got.Base != tt.base || got.Device != s.c.Device()
		}
		if wrong {
			s.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if s.c.Device().Has(cuda.VirtualMemory) {
		v, err := s.c.AllocVirtual(1, cuda.AllocationOptions{})
		keep(s.T, v, err)
		got, err := s.c.Inspect(v.Pointer().Add(100))
		if err != nil || !got.Virtual || got.IPC || got.Base != v.Pointer() || got.Size != v.Size() {
			s.Errorf("virtual: %+v, %v", got, err)
		}
	}
	if _, err := s.c.IPCHandle(plain.Pointer()); err != nil {
		s.Error(err)
	}
}

func events(s stage) {
	a, b := newEvent(s.T, s.c, cuda.EventOptions{Timing: true}), newEvent(s.T, s.c, cuda.EventOptions{Timing: true})
	p := s.zeroed()
	other := newStream(s.T, s.c)
	ok(s.T, a.Record(s.s))
	l, _ := s.prepare(wide, p, 1)
	ok(s.T, l.Start(s.s))
	ok(s.T, b.Record(s.s))
	ok(s.T, other.WaitEvent(b))
	ok(s.T, l.Start(other))
	ok(s.T, other.Synchronize())
	if done, err := b.Query(); !done || err != nil {
		s.Errorf("b: %v, %v", done, err)
	}
	if took, err := b.Since(a); err != nil || took < 0 || took > 10*time.Second {
		s.Errorf("%v, %v", took, err)
	}
	s.expect(p, 2)
}

func refusals(s stage) {
	_, total, err := s.c.MemInfo()
	ok(s.T, err)
	_, err = s.c.Alloc(int(2 * total))
	wants(s.T, err, cuda.ErrOutOfMemory)
	if s.c.Device().Driver().Version() >= 12040 { // which can tell the parameters' sizes
		_, err := s.f.Prepare(wide, cuda.Pointer(0), int32(1), uint64(2))
		wants(s.T, err, cuda.ErrInvalidValue)
	}
	unbind, err := s.c.Bind()
	ok(s.T, err)
	unbind()
}

func peers(s stage, peer *cuda.Context) {
	can, err := s.c.Device().CanAccessPeer(peer.Device())
	ok(s.T, err)
	m := alloc(s.T, peer, 4*words)
	p := s.zeroed()
	ok(s.T, s.s.CopyPeer(m.Pointer(), peer, p, s.c, 4*words))
	ok(s.T, s.s.Synchronize())
	if !can {
		s.Skip("the devices cannot reach each other's memory")
	}
	ok(s.T, s.c.EnablePeer(peer))
	ok(s.T, s.c.EnablePeer(peer))
	l, _ := s.prepare(wide, m.Pointer(), 3)
	ok(s.T, l.Start(s.s))
	ok(s.T, s.s.CopyPeer(p, s.c, m.Pointer(), peer, 4*words))
	s.expect(p, 3)
	ok(s.T, s.c.DisablePeer(peer))
}
