package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weftgo/weft/cuda/cudatest/emulate"
)

// emulatedGPUs puts a libweft.so into the folder whose GPUs the host's processors emulate, and has
// programs take it. With the flags of scripts/clib.sh it shares what that has compiled.
func emulatedGPUs(t *testing.T, folder string) {
	t.Helper()
	emulate.Need(t)
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "emulated", "-buildmode=c-shared",
		"-ldflags=-s -w -extldflags '-Wl,-soname,libweft.so'",
		"-o", filepath.Join(folder, "libweft.so"), ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	t.Setenv("LD_LIBRARY_PATH", folder)
}

// The GPU half: whatever is exchanged comes out as from the host engine, in the program's own
// memory and streams. The bundle has the same program for real GPUs.
func TestOnEmulatedGPUs(t *testing.T) {
	program, folder := compile(t, "testdata/gpus.c"), t.TempDir()
	emulatedGPUs(t, folder)
	sizes := []string{"1", "2", "3"}
	if emulate.Everything() {
		sizes = append(sizes, "4")
	}
	for _, n := range sizes {
		t.Run(n, func(t *testing.T) {
			if got := runFor(t, 5*time.Minute, program, n); got != "ok\n" { // the first one may compile the kernels
				t.Error(got)
			}
		})
	}
}
