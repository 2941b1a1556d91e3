package weft_test

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/internal/ranktest"
)

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors cannot be counted here: %v", err)
	}
	return len(entries)
}

// TestDescriptors joins and leaves many times: descriptors and goroutines do not add up.
func TestDescriptors(t *testing.T) {
	once := func() {
		group, err := ranktest.Join(4)
		if err != nil {
			t.Fatal(err)
		}
		must(t, group, func(c *weft.Comm) error {
			for range 3 { // windows that Close has to find
				if _, err := c.Alloc(testContext(t), 4096); err != nil {
					return err
				}
			}
			return nil
		})
		must(t, group, func(c *weft.Comm) error { return c.Close() })
	}
	once()
	files, routines := openFiles(t), runtime.NumGoroutine()
	for range 20 {
		once()
	}
	for wait := time.Millisecond; runtime.NumGoroutine() > routines+4 && wait < time.Second; wait *= 2 {
		time.Sleep(wait)
	}
	if now := openFiles(t); now > files {
		t.Errorf("%d descriptors before, %d after", files, now)
	}
	if now := runtime.NumGoroutine(); now > routines+4 {
		t.Errorf("%d goroutines before, %d after", routines, now)
	}
}

// TestCollectorIsNotStopped collects garbage while ranks spin.
func TestCollectorIsNotStopped(t *testing.T) {
	for name, p := range map[string]channel.Policy{
		"spinning": {Spin: 1 << 30}, "yielding": {Yield: 1 << 30},
		"yielding to goroutines": {Yield: 1 << 30, Goroutines: true}, "sleeping": {},
	} {
		t.Run(name, func(t *testing.T) {
			group := join(t, 2, weft.WithWaitPolicy(p), weft.WithDeadline(20*time.Second))
			waits := make(chan error)
			go func() { waits <- group[0].Operations().VerifySame(testContext(t), "test", "", nil) }()
			if name == "sleeping" || name == "yielding to goroutines" || name == "yielding" {
				for group[1].Operations().Waiter().Peers[0].Record().Peer != 1 {
					runtime.Gosched()
				}
			}
			for range 5 { // each ends before the rank's deadline, or its wait fails
				runtime.GC()
			}
			if err := errors.Join(group[1].Operations().VerifySame(testContext(t), "test", "", nil), <-waits); err != nil {
				t.Error(err)
			}
		})
	}
}
