package ep_test

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
)

// gpuMachine is where a test of the GPU engine runs: on the machine's GPUs, or on emulated ones.
type gpuMachine struct {
	*ranktest.GPUs
	emulated bool
	each     int // so many ranks are on a host; 0: all
	logger   *slog.Logger
}

// eachMachine runs a test on emulated GPUs, and on the machine's, where there are any.
func eachMachine(t *testing.T, body func(t *testing.T, m *gpuMachine)) {
	t.Run("emulated", func(t *testing.T) {
		if testing.Short() {
			t.Skip("emulated kernels are slow: of them the short tests run some of the suite")
		}
		body(t, tornMachine(t))
	})
	t.Run("real", func(t *testing.T) { body(t, &gpuMachine{GPUs: ranktest.Real(t)}) })
}

// eachMachineAtLength is eachMachine of tests that emulated GPUs run only with all the others: they
// combine, repeat or vary what others have there once.
func eachMachineAtLength(t *testing.T, body func(t *testing.T, m *gpuMachine)) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		if m.emulated && !emulate.Everything() {
			t.Skip("run by make test-all: WEFT_TEST_ALL=1")
		}
		body(t, m)
	})
}

// parallel has a test that mostly waits do so beside others, on emulated GPUs of its own. Real ones
// have one test at a time.
func (m *gpuMachine) parallel(t *testing.T) *gpuMachine {
	if !m.emulated {
		return m
	}
	t.Parallel()
	return tornMachine(t).between(m.each)
}

// tornMachine has two GPUs whose memory is as weakly ordered as it can be.
func tornMachine(t *testing.T) *gpuMachine {
	t.Helper()
	return emulatedMachine(t, 2, emulate.Options{Limit: 2 * time.Minute, Seed: 1, Tear: true})
}

// emulatedMachine makes GPUs of the host's processors. They must be clean in the end.
func emulatedMachine(t testing.TB, gpus int, o emulate.Options) *gpuMachine {
	t.Helper()
	return emulatedAs(t, cudatest.Config{Devices: gpus}, o)
}

// emulatedAs is emulatedMachine of GPUs that a Config describes.
func emulatedAs(t testing.TB, c cudatest.Config, o emulate.Options) *gpuMachine {
	t.Helper()
	return &gpuMachine{GPUs: ranktest.Emulated(t, c, o), emulated: true}
}

// times is n on emulated GPUs, which are slow, and many on others.
func (m *gpuMachine) times(n, many int) int {
	if m.emulated {
		return n
	}
	return many
}

// holds says whether so many ranks may be on the machine's GPUs: with WEFT_EP_SHARED=0 none share
// one, for tools that have a GPU run one kernel at a time.
func (m *gpuMachine) holds(ranks int) bool {
	return m.emulated || ranks <= len(m.Contexts) || os.Getenv("WEFT_EP_SHARED") != "0"
}

// sms is what a test's ranks are given of a GPU's SMs: tests are written for two GPUs, and one that
// has all of several ranks is shared by twice as many.
func (m *gpuMachine) sms(n, ranks int) int {
	if len(m.Contexts) == 1 && ranks > 1 {
		return 2 * n
	}
	return n
}

// between has so many ranks on each host, of hosts that a network without hardware connects.
func (m *gpuMachine) between(each int) *gpuMachine {
	return &gpuMachine{m.GPUs, m.emulated, each, m.logger}
}

// engine makes the engine of n goroutine ranks, spread over the GPUs.
func (m *gpuMachine) engine(t *testing.T, n int, deadline time.Duration) *eptest.Device {
	t.Helper()
	if m.each > 0 {
		return m.hosts(t, n, deadline)
	}
	options := []weft.Option{weft.WithDeadline(deadline)}
	if m.Kernels != nil {
		options = append(options, weft.WithKernels(m.Kernels))
	}
	e := eptest.NewDevice(m.Contexts[:min(n, len(m.Contexts))], options...).OfSizes(n)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// hosts is engine between hosts.
func (m *gpuMachine) hosts(t *testing.T, n int, deadline time.Duration) *eptest.Device {
	t.Helper()
	classes := fabrictest.Classes()
	network := fabrictest.New(classes[n%len(classes)], uint64(n))
	names := make([]byte, n)
	for rank := range names {
		names[rank] = 'a' + byte(rank/m.each)
	}
	e := eptest.NewDeviceHosts(string(names), func(rank int) []weft.Option {
		return append(m.Options(rank), weft.WithDeadline(deadline), weft.WithFabric(network.Open), weft.WithLogger(m.logger))
	})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := network.Check(); err != nil {
			t.Error(err)
		}
	})
	return e
}
