package ranktest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	seen := make([]int, 3)
	err := Run(3, OnHost, func(ctx context.Context, c *weft.Comm) error {
		_, err := c.Alloc(ctx, 64)
		seen[c.Rank()]++
		return err
	})
	if err != nil || seen[0] != 1 || seen[1] != 1 || seen[2] != 1 {
		t.Errorf("%v, %v", seen, err)
	}
	if err := Run(2, func(int) []weft.Option {
		return []weft.Option{weft.WithDeadline(-1)}
	}, nil); err == nil {
		t.Error("ranks that cannot join")
	}
}

// A rank that fails ends the others, and the next ones are new.
func TestGroupsAfterFailure(t *testing.T) {
	g := Goroutines("goroutines", OnHost)
	wrong := errors.New("wrong")
	err := g.Ranks(2, func(c *weft.Comm) error {
		if c.Rank() == 0 {
			return wrong
		}
		_, err := c.Alloc(context.Background(), 64) // until rank 0 aborts it
		return err
	})
	if !errors.Is(err, wrong) || !errors.Is(err, weft.ErrAborted) {
		t.Errorf("%v", err)
	}
	again := func() error { return g.Ranks(2, func(c *weft.Comm) error { return c.Err() }) }
	if err := errors.Join(again(), again(), g.Close()); err != nil {
		t.Error(err)
	}
}

func TestFakeGPUs(t *testing.T) {
	g := Fake(t, cudatest.Config{Devices: 2})
	err := Run(3, g.Options, func(_ context.Context, c *weft.Comm) error {
		if got := c.Device().Context().Device().Ordinal(); got != c.Rank()%2 {
			return fmt.Errorf("on GPU %d", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Contexts stay from test to test until a kernel fails.
func TestKeptContexts(t *testing.T) {
	m := cudatest.New(cudatest.Config{Devices: 2})
	driver, err := m.Open()
	if err != nil {
		t.Skip(err)
	}
	var k keeper
	made := func() int { return m.Calls("cuDevicePrimaryCtxRetain") - m.Calls("cuDevicePrimaryCtxRelease") }
	use := func(kept int) {
		t.Helper()
		g, err := k.open(driver)
		if err == nil {
			err = g.Close()
		}
		if err != nil || made() != kept {
			t.Errorf("%v; %d references are kept, want %d", err, made(), kept)
		}
	}
	use(2)
	use(2)
	before := k.kept[0]
	m.Fail("cuCtxSynchronize", 0, cuda.ErrLaunchFailed)
	use(2)
	if k.kept[0] == before {
		t.Error("a useless context is kept")
	}
	k.close()
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
