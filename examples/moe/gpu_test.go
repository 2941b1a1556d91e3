package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/cudatest/layout"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/ranktest"
)

// gpus is where experts work in a test: on this machine's GPUs, or on emulated ones.
type gpus struct{ *ranktest.GPUs }

// eachGPUs runs a test on emulated GPUs, and on the machine's, where there are any: they also need
// the compiler, for the kernels are this program's own.
func eachGPUs(t *testing.T, body func(t *testing.T, g *gpus)) {
	t.Run("emulated", func(t *testing.T) {
		if testing.Short() {
			t.Skip("emulated kernels are slow")
		}
		body(t, &gpus{ranktest.Emulated(t, cudatest.Config{Devices: 2}, emulate.Options{Limit: time.Minute, Seed: 1})})
	})
	t.Run("real", func(t *testing.T) {
		g := ranktest.Real(t)
		cudatest.NVRTC(t)
		body(t, &gpus{g})
	})
}

// meet is a [meeting].
func (g *gpus) meet(ctx context.Context, c *weft.Comm) (*weft.Comm, error) {
	return joinGPUs(ctx, c, append(g.Options(c.Rank()), weft.WithDeadline(20*time.Second))...)
}

// near fails the test unless a loss is the host's within a thousandth: training from numbers whose
// last bits differ ends 1e-8 apart.
func near(t *testing.T, what string, loss, host float64) {
	t.Helper()
	if !(math.Abs(loss-host) <= 1e-3*host) {
		t.Errorf("%s: loss %v, on the host %v", what, loss, host)
	}
}

// TestOnGPUs has experts work on GPUs. Everything else is as on the host, so this is about the way
// there and back, the kernels, and what they promise.
func TestOnGPUs(t *testing.T) {
	eachGPUs(t, func(t *testing.T, g *gpus) {
		t.Run("gradients", g.gradients)
		t.Run("ranks", g.ranks)
		t.Run("learns", g.learns)
	})
}

// gradients compares those of one micro-batch on each rank with the host's.
func (g *gpus) gradients(t *testing.T) {
	text, _ := puzzle(1 << 12)
	ranks := min(2, len(g.Contexts))
	pass := func(meet meeting) []*model {
		return modelsOn(t, ranks, small, meet, func(ctx context.Context, m *model) error {
			before, target := sample(text, small, 0, m.comm.Rank())
			if _, err := m.forward(ctx, before, target); err != nil {
				return err
			}
			return m.backward(ctx, small.dense(m.own))
		})
	}
	host, got := pass(onHost), pass(g.meet)
	for r := range ranks {
		for _, kind := range []struct {
			name      string
			got, want []float32
		}{{"experts", got[r].experts.grad, host[r].experts.grad}, {"all that every rank has", got[r].own, host[r].own}} {
			largest, worst := float32(0), float32(0)
			for i, want := range kind.want {
				largest, worst = max(largest, want, -want), max(worst, want-kind.got[i], kind.got[i]-want)
			}
			if !(worst <= 1e-5*largest) || largest < 1e-4 {
				t.Errorf("rank %d: gradients of %s are off by %v; the largest is %v", r, kind.name, worst, largest)
			}
		}
	}
}

// ranks trains with a rank on each of 1, 2 and 4 GPUs, as far as there are as many: losses and
// parameters are the same bits. On the way what the experts make of every token is verified.
func (g *gpus) ranks(t *testing.T) {
	cfg := small
	if g.Machine != nil {
		cfg.Steps, cfg.Verify = 4, 2
	}
	host, one := train(t, 1, cfg), trainOn(t, 1, cfg, g.meet)
	for step, loss := range one.losses {
		near(t, fmt.Sprintf("step %d", step), float64(math.Float32frombits(loss)),
			float64(math.Float32frombits(host.losses[step])))
	}
	for _, n := range []int{2, 4} {
		if n > len(g.Contexts) {
			break
		}
		got := trainOn(t, n, cfg, g.meet)
		if !slices.Equal(got.losses, one.losses) || !slices.Equal(got.dense, one.dense) ||
			!slices.Equal(got.experts, one.experts) {
			t.Errorf("%d ranks have other losses or parameters than one", n)
		}
	}
}

// learns is TestLearns: the loss ends where the host's does. Emulated GPUs, and the short tests,
// make a few steps of it.
func (g *gpus) learns(t *testing.T) {
	cfg := learner
	switch {
	case g.Machine != nil:
		cfg.Steps = 5
	case testing.Short():
		cfg.Steps = 20
	}
	text, _ := puzzle(1 << 16)
	host, got := learn(t, 2, text, cfg, onHost, func(*model) {}), learn(t, min(2, len(g.Contexts)), text, cfg,
		g.meet, func(*model) {})
	t.Logf("loss %.4f, on the host %.4f", got, host)
	near(t, fmt.Sprintf("after %d steps", cfg.Steps), got, host)
}

// TestRunOnGPU is the command, as the only rank, on a GPU of this machine.
func TestRunOnGPU(t *testing.T) {
	ranktest.Real(t)
	cudatest.NVRTC(t)
	alone(t)
	file := filepath.Join(t.TempDir(), "text")
	text, _ := puzzle(1 << 14)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(testContext(t), []string{
		"-device", "gpu", "-text", file, "-steps", "10", "-verify", "5",
		"-check=false",
	}, &out); err != nil {
		t.Fatal(err)
	}
	if want := "without them: 6,"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in what it prints:\n%s", want, &out)
	}
}

// TestKernels compiles the kernels for the oldest GPUs, for Hopper and for the newest, and compares
// the structs that they take with this program's, field by field.
func TestKernels(t *testing.T) {
	cudatest.NVRTC(t)
	source := kernelSource + "namespace weft {\n" + layout.Of("Product", reflect.TypeFor[productArgs](), nil) +
		layout.Of("Gradient", reflect.TypeFor[gradientArgs](), nil) +
		layout.Constants(map[string]int{"TILE": tile}) + "}\n"
	cache := kernel.New(kernel.Options{Dir: t.TempDir(), ReadOnly: []string{}})
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a"} {
		cubin, err := cache.Load(t.Context(),
			kernel.Spec{Name: "moe experts", Source: source, Headers: device.Headers(), Arch: arch})
		if err != nil {
			t.Fatalf("%+v", err)
		}
		if cubin.Log != "" {
			t.Errorf("%s: %s", arch, cubin.Log)
		}
	}
}
