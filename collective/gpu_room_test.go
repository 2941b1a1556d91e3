package collective_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestDefaultsLeaveRoomOnEmulatedGPUs: groups and handles that ask for no number of SMs find room beside each other,
// whichever comes first, also where two ranks share a GPU, whatever registers kernels have.
func TestDefaultsLeaveRoomOnEmulatedGPUs(t *testing.T) {
	for _, devices := range []int{2, 1} {
		for _, groupsFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d GPUs, groups first %t", devices, groupsFirst), func(t *testing.T) {
				g := ranktest.Emulated(t, cudatest.Config{
					Devices: devices, Registers: 128,
					Attributes: map[cuda.Attribute]int{cuda.MultiprocessorCount: 132},
				}, emulate.Options{Seed: 1})
				err := ranktest.Run(2, g.Options, func(ctx context.Context, comm *weft.Comm) error {
					return beside(ctx, comm, groupsFirst)
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func beside(ctx context.Context, comm *weft.Comm, groupsFirst bool) error {
	var made []io.Closer
	group := func() error {
		g, err := collective.New(ctx, comm, collective.Options{Staging: 1 << 20})
		if err == nil {
			made = append(made, g)
		}
		return err
	}
	handle := func() error {
		h, err := ep.NewHandle(ctx, comm, ep.Spec{Experts: 8, TopK: 2, Hidden: 128, MaxTokens: 4096, Payload: ep.BF16})
		if err == nil {
			made = append(made, h)
		}
		return err
	}
	order := []func() error{handle, group, group}
	if groupsFirst {
		order = []func() error{group, group, handle}
	}
	var err error
	for _, one := range order {
		if err = one(); err != nil {
			break
		}
	}
	for _, c := range made {
		err = errors.Join(err, c.Close())
	}
	return err
}

// TestFewerSMsThanRanksOnEmulatedGPUs: ranks that share a GPU are all told how many SMs they need together.
func TestFewerSMsThanRanksOnEmulatedGPUs(t *testing.T) {
	g := ranktest.Emulated(t, cudatest.Config{}, emulate.Options{Seed: 1})
	err := ranktest.Run(3, g.Options, func(ctx context.Context, comm *weft.Comm) error {
		_, err := collective.New(ctx, comm, collective.Options{Staging: 1 << 20, SMs: 2})
		if !errors.Is(err, weft.ErrUnsupported) ||
			!strings.Contains(err.Error(), "SMs 2: its kernels take 3 at least, of 3 ranks on a GPU") {
			return fmt.Errorf("2 SMs for three ranks: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
