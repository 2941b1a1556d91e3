//go:build unix

package weft_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/internal/ranktest/processes"
)

// bind puts the member on a GPU of a machine that all members see in the same way.
func (m *member) bind(r *processes.Rank, a memberArgs) (weft.Option, error) {
	config := cudatest.Config{Devices: a.GPUs, NoPeers: a.NoPeers}
	if a.Plain {
		config.Attributes = map[cuda.Attribute]int{cuda.VirtualMemory: 0}
	}
	m.machine = cudatest.New(config)
	open, ordinal := m.machine.Open, r.Rank%a.GPUs
	if a.Real {
		open = cuda.Open
	}
	if a.Isolated {
		if err := os.Setenv("CUDA_VISIBLE_DEVICES", strconv.Itoa(ordinal)); err != nil {
			return nil, err
		}
		ordinal = 0
	}
	d, err := open()
	if err != nil {
		return nil, err
	}
	gpu, err := d.Device(ordinal)
	if err != nil {
		return nil, err
	}
	m.context, err = gpu.Primary()
	return weft.WithDevice(m.context), err
}

func (m *member) allocDevice(ctx context.Context, a memberArgs) error {
	w, err := m.comm.Alloc(ctx, a.Size)
	if err != nil {
		return err
	}
	// Plain memory goes with its owner, so all let go of others' first.
	return errors.Join(visit(ctx, m.comm, w, a.Size-m.comm.Size()),
		m.comm.Operations().VerifySame(ctx, "test", "seen", nil), w.Close())
}

// register makes a window of memory of this process. Ranks of even number have virtual memory
// unless all have the plain kind.
func (m *member) register(ctx context.Context, a memberArgs) error {
	const offset = 256
	var p cuda.Pointer
	var release func() error
	switch {
	case a.Kind == "shared" && m.comm.Rank()%2 == 0, a.Kind == "unshared" && m.comm.Rank() == 0:
		o := cuda.AllocationOptions{Share: cuda.ShareFD}
		if a.Kind == "unshared" {
			o.Share = cuda.NotShared
		}
		v, err := m.context.AllocVirtual(offset+a.Size, o)
		if err != nil {
			return err
		}
		p, release = v.Pointer(), v.Close
	default:
		v, err := m.context.Alloc(offset + a.Size)
		if err != nil {
			return err
		}
		p, release = v.Pointer(), v.Close
	}
	w, err := m.comm.RegisterDevice(ctx, p.Add(offset), a.Size)
	if err != nil {
		return errors.Join(err, release())
	}
	return errors.Join(visit(ctx, m.comm, w, a.Size-m.comm.Size()),
		m.comm.Operations().VerifySame(ctx, "test", "seen", nil), w.Close(),
		m.comm.Operations().VerifySame(ctx, "test", "closed", nil), release())
}

// leave closes everything, and finds the machine in order.
func (m *member) leave() error {
	var err error
	if m.comm != nil {
		err = m.comm.Close()
	}
	return errors.Join(err, m.context.Close(), m.machine.Check())
}

func startDevices(t *testing.T, n int, a memberArgs) (*processes.Crew, []int) {
	t.Helper()
	if _, err := cudatest.New(cudatest.Config{}).Open(); errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	crew := processes.Start(t, "member", n)
	var all []int
	for r := range n {
		all = append(all, r)
	}
	a.ID = crew.ID()
	crew.Must(all, "join", a)
	return crew, all
}

// TestGPUProcesses is TestDeviceProcesses on the GPUs of this machine.
func TestGPUProcesses(t *testing.T) {
	d := gpus(t)
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprintf("isolated=%v", isolated), func(t *testing.T) {
			crew := processes.Start(t, "member", 3)
			all := []int{0, 1, 2}
			crew.Must(all, "join", memberArgs{ID: crew.ID(), GPUs: len(d.Devices()), Real: true, Isolated: isolated})
			for _, size := range []int{8, 4096, 3 << 20} {
				crew.Must(all, "alloc", memberArgs{Size: size})
			}
			crew.Must(all, "register", memberArgs{Size: 1000, Kind: "shared"})
			crew.Must(all, "register", memberArgs{Size: 1000, Kind: "plain"})
			crew.Must(all, "leave", memberArgs{})
		})
	}
}

// TestDeviceProcesses: ranks of processes map each other's device memory.
func TestDeviceProcesses(t *testing.T) {
	for name, a := range map[string]memberArgs{
		"one GPU": {GPUs: 1}, "two GPUs": {GPUs: 2}, "plain": {GPUs: 2, Plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			crew, all := startDevices(t, 3, a)
			for _, size := range []int{8, 4096, 3 << 20} {
				crew.Must(all, "alloc", memberArgs{Size: size})
			}
			crew.Must(all, "register", memberArgs{Size: 1000, Kind: "plain"})
			crew.Must(all, "register", memberArgs{Size: 1000, Kind: "shared"})
			for r, answer := range crew.All(all, "register", memberArgs{Size: 1000, Kind: "unshared"}) {
				if answer.Cause != "unsupported" || !strings.Contains(answer.Err, "descriptors") {
					t.Errorf("rank %d registers memory that cannot be shared: %q", r, answer.Err)
				}
			}
			crew.Must(all, "alloc", memberArgs{Size: 100})
			crew.Must(all, "leave", memberArgs{})
		})
	}
}

// TestDeviceProcessesApart refuses GPUs that cannot reach each other.
func TestDeviceProcessesApart(t *testing.T) {
	if _, err := cudatest.New(cudatest.Config{}).Open(); errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	crew := processes.Start(t, "member", 2)
	all := []int{0, 1}
	for r, a := range crew.All(all, "join", memberArgs{ID: crew.ID(), GPUs: 2, NoPeers: true}) {
		for _, word := range []string{"0000:1b:00.0", "0000:1c:00.0"} {
			if a.Cause != "unsupported" || !strings.Contains(a.Err, word) {
				t.Errorf("rank %d does not say %q: %q (%s)", r, word, a.Err, a.Cause)
			}
		}
	}
	crew.Must(all, "leave", memberArgs{})
}

// TestDeviceProcessDies: the survivors go on, with windows of their own.
func TestDeviceProcessDies(t *testing.T) {
	crew, _ := startDevices(t, 3, memberArgs{GPUs: 2})
	rest := []int{0, 2}
	for _, r := range rest {
		crew.Tell(r, "alloc", memberArgs{Size: 1000})
	}
	crew.Kill(1)
	for r, a := range crew.Answers(rest) {
		if a.Peer != 1 || a.Cause != "died" {
			t.Errorf("rank %d after the death of rank 1: %q", r, a.Err)
		}
	}
	crew.Must(rest, "mask", memberArgs{Masked: []int{1}})
	crew.Must(rest, "alloc", memberArgs{Size: 1000})
	crew.Must(rest, "leave", memberArgs{})
}
