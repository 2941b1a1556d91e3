package weft_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/shm"
)

func TestRegister(t *testing.T) {
	group := join(t, 2)
	ctx := testContext(t)
	must(t, group, func(c *weft.Comm) error {
		fd, err := unix.MemfdCreate("caller", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return err
		}
		if err := unix.Ftruncate(fd, 8192); err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			return err
		}
		w, err := c.Register(ctx, fd, 5000)
		if err != nil {
			return err
		}
		if w.Size() != 5000 {
			return fmt.Errorf("%d bytes", w.Size())
		}
		return errors.Join(exchangeThrough(t, c, w), w.Close())
	})
	// A file that may shrink under its readers is refused, on all ranks if one brings it.
	must(t, group, func(c *weft.Comm) error {
		f, err := os.CreateTemp(t.TempDir(), "plain")
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Truncate(4096); err != nil {
			return err
		}
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			return err
		}
		_, err = c.Register(ctx, fd, 4096)
		if !errors.Is(err, shm.ErrNotMemfd) {
			return fmt.Errorf("an ordinary file: %w: %v", errUnexpected, err)
		}
		return nil
	})
}
