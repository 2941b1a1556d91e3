package weft_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

// gpus is this machine's driver. Without one the test is skipped, unless WEFT_REQUIRE_GPU says that
// there must be one.
func gpus(t *testing.T) *cuda.Driver {
	t.Helper()
	d, err := cuda.Open()
	if err != nil && os.Getenv("WEFT_REQUIRE_GPU") == "" {
		t.Skipf("needs a GPU: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestGPU does on the GPUs of this machine what other tests do on a driver made of Go: several
// ranks on one GPU, and one on each.
func TestGPU(t *testing.T) {
	d := gpus(t)
	ctx := testContext(t)
	var one []int
	for _, g := range d.Devices() {
		one = append(one, g.Ordinal())
	}
	for _, ordinals := range [][]int{{0}, {0, 0, 0}, one, append(one, one...)} {
		t.Run(fmt.Sprint(ordinals), func(t *testing.T) {
			group := joinOn(t, d, ordinals)
			must(t, group, func(c *weft.Comm) error {
				for _, size := range []int{64, 5 << 20} {
					w, err := c.Alloc(ctx, size)
					if err != nil {
						return err
					}
					if err := errors.Join(visit(ctx, c, w, size-c.Size()), c.Operations().VerifySame(ctx, "test", "seen", nil),
						w.Close()); err != nil {
						return err
					}
				}
				m, err := c.Device().Context().Alloc(4096)
				if err != nil {
					return err
				}
				zeroed := errors.Join(c.Device().Stream().Memset(m.Pointer(), 0, 4096), c.Device().Stream().Wait(ctx))
				w, err := c.RegisterDevice(ctx, m.Pointer().Add(1024), 1000)
				if err := errors.Join(zeroed, err); err != nil {
					return err
				}
				return errors.Join(visit(ctx, c, w, 10), c.Operations().VerifySame(ctx, "test", "seen", nil), w.Close(),
					c.Operations().VerifySame(ctx, "test", "closed", nil), m.Close())
			})
			t.Logf("windows are virtual memory: %v; kernels see a copy of the abort word: %v",
				group[0].Device().Virtual(), group[0].Device().Mirrored())
			// The devices read the abort word where the hosts write it.
			read := func(c *weft.Comm) ([]byte, error) {
				b := make([]byte, 8)
				m, err := c.Device().Context().Alloc(8)
				if err != nil {
					return nil, err
				}
				s := c.Device().Stream()
				return b, errors.Join(s.Copy(m.Pointer(), c.Operations().AbortWord(), 8), s.Wait(ctx),
					c.Device().Context().Download(b, m.Pointer()), m.Close())
			}
			must(t, group, func(c *weft.Comm) error {
				if b, err := read(c); err != nil || !bytes.Equal(b, make([]byte, 8)) {
					return fmt.Errorf("abort word %x: %w", b, err)
				}
				return c.Operations().VerifySame(ctx, "test", "none", nil)
			})
			group[len(group)-1].Abort()
			must(t, group, func(c *weft.Comm) error {
				if b, err := read(c); err != nil || bytes.Equal(b, make([]byte, 8)) {
					return fmt.Errorf("abort word %x after an abort: %w", b, err)
				}
				if err := blame(c.Wait(ctx, nil), len(group)-1, weft.ErrAborted); err != nil {
					return err
				}
				return errors.Join(c.SetMask(ctx), c.Err())
			})
			must(t, group, func(c *weft.Comm) error {
				if b, err := read(c); err != nil || !bytes.Equal(b, make([]byte, 8)) {
					return fmt.Errorf("abort word %x after SetMask: %w", b, err)
				}
				return nil
			})
		})
	}
}
