package simd

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestGeneratedCodeIsCurrent runs the generator into an empty directory and compares what it writes
// with what is committed. It is skipped where the generator is not part of the checkout or its
// modules cannot be had.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("the generator takes long to build")
	}
	tools := filepath.Join("..", "..", "tools")
	if _, err := os.Stat(filepath.Join(tools, "simdgen")); err != nil {
		t.Skip("tools/simdgen is not part of this checkout")
	}
	const command = "go"
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, command, args...)
		cmd.Dir = tools
		cmd.Env = append(os.Environ(), "GOOS=", "GOARCH=", "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=readonly")
		cmd.WaitDelay = time.Second
		return cmd.CombinedOutput()
	}
	if out, err := run("list", "-deps", "./simdgen"); err != nil {
		t.Skipf("the modules of tools/simdgen are not at hand: %v\n%s", err, out)
	}
	dir := t.TempDir()
	if out, err := run("run", "./simdgen", "-dir", dir); err != nil {
		t.Fatalf("simdgen: %v\n%s", err, out)
	}

	fresh, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(fresh) == 0 {
		t.Fatalf("simdgen wrote nothing: %v", err)
	}
	current := map[string]bool{"hint_amd64.s": true} // written by hand
	for _, path := range fresh {
		name := filepath.Base(path)
		current[name] = true
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is not what simdgen writes: run go generate in internal/simd", name)
		}
	}
	committed, err := filepath.Glob("*_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range committed {
		if !current[name] {
			t.Errorf("simdgen does not write %s", name)
		}
	}
}
