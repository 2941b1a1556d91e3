package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// TestRegisterDevice writes between regions of GPU memory, of which only the network touches a byte, with dma-bufs and
// without; it refuses what such regions cannot do.
func TestRegisterDevice(t *testing.T) {
	for _, dmaBufs := range []bool{false, true} {
		class := fabrictest.Verbs()
		class.Devices, class.DMABufs = true, dmaBufs
		network := fabrictest.New(class, 5)
		var domains [2]*fabric.Domain
		var regions [2]*fabric.Region
		var memories [2][]byte
		for rank := range domains {
			d, err := network.Open(t.Context(), fabric.Options{Rank: rank, Size: 2, Devices: true})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			if c := d.Capabilities(); !c.Devices || c.DMABufs != dmaBufs {
				t.Fatalf("%+v", c)
			}
			memories[rank] = make([]byte, 9000)
			m := fabric.DeviceMemory{Address: uintptr(unsafe.Pointer(&memories[rank][0])), Bytes: 9000}
			if dmaBufs {
				file, err := os.Create(filepath.Join(t.TempDir(), "dma-buf"))
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				m.DMABuf = file
			}
			if regions[rank], err = d.RegisterDevice(m, 1); err != nil {
				t.Fatal(err)
			}
			domains[rank] = d
		}
		for i := range memories[0] {
			memories[0][i] = byte(i * 7)
		}
		var peers [2]*fabric.Peer
		done := make(chan error, 1)
		go func() {
			var err error
			peers[1], err = domains[1].Connect(t.Context(), 0, domains[0].Card())
			done <- err
		}()
		var err error
		if peers[0], err = domains[0].Connect(t.Context(), 1, domains[1].Card()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		remote, err := peers[0].Region(regions[1].Card())
		if err != nil {
			t.Fatal(err)
		}
		if err := peers[0].Write(t.Context(), remote, 100, regions[0], 7, 8000); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(peers[0].Signal(t.Context(), 0), peers[1].Await(t.Context(), 0, 1)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(memories[1][100:8100], memories[0][7:8007]) {
			t.Error("other bytes")
		}
		if err := peers[0].Add(t.Context(), remote, 0, 1); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("an add to memory of a GPU: %v", err)
		}
		if err := regions[1].Renew(2); !errors.Is(err, fabric.ErrUnsupported) {
			t.Errorf("renewed: %v", err)
		}
		if err := errors.Join(regions[0].Close(), regions[1].Close(), network.Check()); err != nil {
			t.Error(err)
		}
	}
}

// TestRegisterDeviceRefused: providers refuse what they do not reach.
func TestRegisterDeviceRefused(t *testing.T) {
	memory := make([]byte, 64)
	m := fabric.DeviceMemory{Address: uintptr(unsafe.Pointer(&memory[0])), Bytes: 64}
	open := func(class fabrictest.Class) *fabric.Domain {
		d, err := fabrictest.New(class, 1).Open(context.Background(), fabric.Options{Size: 1, Devices: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d
	}
	d := open(fabrictest.TCP())
	if _, err := d.RegisterDevice(m, 0); !errors.Is(err, fabric.ErrUnsupported) {
		t.Errorf("by tcp: %v", err)
	}
	class := fabrictest.TCP()
	class.Devices = true
	d = open(class)
	for _, bad := range []fabric.DeviceMemory{{}, {Bytes: 64}, {Address: m.Address}, {Address: m.Address, Bytes: -1}} {
		if _, err := d.RegisterDevice(bad, 0); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	m.DMABuf = os.Stdin
	if _, err := d.RegisterDevice(m, 0); !errors.Is(err, fabric.ErrUnsupported) {
		t.Errorf("a dma-buf: %v", err)
	}
}
