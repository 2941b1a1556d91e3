package weft_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftgo/weft"
)

// TestTraceOfFullDisk: a trace that cannot be written is no failure, and is said once, also to who asked for no log.
func TestTraceOfFullDisk(t *testing.T) {
	t.Setenv(weft.LogVariable, "")
	said := filepath.Join(t.TempDir(), "said")
	to, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stderr
	os.Stderr = to
	c, err := weft.Join(testContext(t), weft.WithTrace(t.TempDir()))
	os.Stderr = before
	if err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	for fd := 3; ; fd++ { // that of the trace's file
		if fd == 1<<16 {
			t.Fatal("no file")
		}
		if name, _ := os.Readlink(fmt.Sprint("/proc/self/fd/", fd)); name == c.Operations().Trace().Path() {
			if err := unix.Dup3(int(full.Fd()), fd, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(said)
	if err != nil || strings.Count(string(text), "the trace is incomplete") != 1 ||
		!strings.Contains(string(text), "no space left on device") {
		t.Errorf("%q %v", text, err)
	}
}
