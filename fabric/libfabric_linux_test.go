package fabric_test

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// TestRefusedProviders: what would lose data is refused by its name and the reason, before it is opened.
func TestRefusedProviders(t *testing.T) {
	fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1, Provider: "tcp"}).Close()
	for name, reason := range map[string]string{
		"shm": "", "sockets": "milliseconds", "udp;ofi_rxd": "stops", "psm2": "not tested",
	} {
		_, err := fabric.Open(t.Context(), fabric.Options{Size: 1, Provider: name})
		if !errors.Is(err, fabric.ErrUnsupported) || !strings.Contains(err.Error(), name) ||
			!strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), "take one of") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := fabric.Open(t.Context(), fabric.Options{Size: 1, Provider: "tcp", Source: "192.0.2.1"})
	if !errors.Is(err, fabric.ErrUnsupported) || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("an address of another host: %v", err)
	}
}

// TestMet: a provider on sockets takes the interface by which ranks met, if nothing says another one.
func TestMet(t *testing.T) {
	fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1, Provider: "tcp"}).Close()
	const elsewhere = "192.0.2.1"
	_, err := fabric.Open(t.Context(), fabric.Options{Size: 1, Provider: "tcp", Met: elsewhere})
	if !errors.Is(err, fabric.ErrUnsupported) || !strings.Contains(err.Error(), elsewhere) {
		t.Errorf("met by an address of another host: %v", err)
	}
	o := fabric.Options{Size: 1, Provider: "tcp", Source: "127.0.0.1", Met: elsewhere}
	fabrictest.Libfabric(t.Context(), t, o).Close()
	t.Setenv("FI_TCP_IFACE", "lo")
	o.Source = ""
	fabrictest.Libfabric(t.Context(), t, o).Close()
}

// TestCapabilities are what libfabric's tcp was measured to grant.
func TestCapabilities(t *testing.T) {
	for _, name := range []string{"tcp", "tcp;ofi_rxm"} {
		d := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1, Provider: name, Source: "127.0.0.1"})
		c := d.Capabilities()
		if !c.Ordered || c.Words || !c.Delivered || !c.Sleeps || c.PicksKeys || c.KeyBytes != 8 || c.DataBytes < 4 ||
			c.MaxWrite < 1<<20 || c.Depth < 64 {
			t.Errorf("%s: %+v", name, c)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSignalsOfGo: opening libfabric leaves the runtime's handlers in place.
func TestSignalsOfGo(t *testing.T) {
	d := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1, Provider: "tcp"})
	defer d.Close()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a nil pointer did not panic")
			}
		}()
		var nothing *int
		t.Log(*nothing)
	}()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1} {
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, sig)
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		select {
		case <-heard:
		case <-time.After(30 * time.Second):
			t.Errorf("%v did not arrive", sig)
		}
		signal.Stop(heard)
	}
}

// TestAllocations: what runs for every operation allocates nothing.
func TestAllocations(t *testing.T) {
	b := backend{options: fabric.Options{Provider: "tcp", Source: "127.0.0.1"}}
	all := b.ranks(t, 2, 4096)
	p, ctx := all[0].peers[1], t.Context()
	for name, f := range map[string]func() error{
		"write":  func() error { return p.Write(ctx, all[0].remotes[1], 0, all[0].region, 0, 64) },
		"signal": func() error { return p.Signal(ctx, 0) },
		"add":    func() error { return p.Add(ctx, all[0].remotes[1], 0, 1) },
		"flush":  func() error { return p.Flush(ctx) },
	} {
		// The runtime counts what all goroutines allocate, timers included: the least of some runs counts.
		var counts []float64
		for range 5 {
			counts = append(counts, testing.AllocsPerRun(100, func() {
				if err := f(); err != nil {
					t.Error(err)
				}
			}))
		}
		if n := slices.Min(counts); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	runtime.KeepAlive(all)
}
