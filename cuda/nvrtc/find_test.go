package nvrtc

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/pythons"
)

// touch makes files under a root.
func touch(t *testing.T, root string, mode os.FileMode, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("not a library"), mode); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFiles looks through a file system with everything in it.
func TestFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need rights there")
	}
	root := t.TempDir()
	touch(t, root, 0o644,
		"usr/local/cuda-12.10/lib64/libnvrtc.so.12", "usr/local/cuda-12.9/lib64/libnvrtc.so.12",
		"usr/local/cuda-12.9/lib64/libnvrtc-builtins.so.12.9",
		"usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so.13",
		"usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so",
		"usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.alt.so.13",
		"opt/python/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"opt/python/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
		"opt/python/lib/python3.12/site-packages/torch/lib/libnvrtc-672ee683.so.14",
		"opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"home/.local/lib/python3.9/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"home/.local/lib/python3.10/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"active/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"usr/lib/python3/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
	)
	touch(t, root, 0o755, "opt/python/bin/python3.12")
	if err := os.MkdirAll(filepath.Join(root, "opt/venv/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "opt/python/bin/python3.12"),
		filepath.Join(root, "opt/venv/bin/python3")); err != nil {
		t.Fatal(err)
	}
	s := system{pythons: pythons.Search{
		Root: root, Home: filepath.Join(root, "home"), Named: []string{filepath.Join(root, "active")},
		Path: []string{filepath.Join(root, "nowhere"), filepath.Join(root, "opt/venv/bin")},
	}}
	want := []string{
		"usr/local/cuda-12.10/lib64/libnvrtc.so.12", "usr/local/cuda-12.9/lib64/libnvrtc.so.12",
		"usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so.13",
		"usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so",
		"active/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"opt/python/lib/python3.12/site-packages/torch/lib/libnvrtc-672ee683.so.14",
		"opt/python/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"opt/python/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
		"home/.local/lib/python3.10/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"home/.local/lib/python3.9/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
		"usr/lib/python3/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, file := range s.files() {
		file = strings.TrimPrefix(strings.TrimPrefix(file, real), root)
		got = append(got, strings.TrimPrefix(file, "/"))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	got = builtins(filepath.Join(root, "usr/local/cuda-12.9/lib64/libnvrtc.so.12"))
	if len(got) != 1 || filepath.Base(got[0]) != "libnvrtc-builtins.so.12.9" {
		t.Errorf("builtins %v", got)
	}
	if got := builtins("libnvrtc.so.13"); got != nil {
		t.Errorf("builtins of the loader's: %v", got)
	}

	_, err = open(s)
	if !errors.Is(err, cuda.ErrUnsupported) || !strings.Contains(err.Error(), "pip install nvidia-cuda-nvrtc") {
		t.Errorf("error %v, want the way out", err)
	}
	for _, file := range want {
		if !strings.Contains(err.Error(), file) {
			t.Errorf("the error does not say that %s was tried", file)
		}
	}
}

// TestNamed: WEFT_NVRTC is the only place, whatever else there is.
func TestNamed(t *testing.T) {
	root := t.TempDir()
	touch(t, root, 0o644, "empty/readme", "usr/local/cuda-13.0/lib64/libnvrtc.so.13", "other/libnvrtc.so.12")
	for name, say := range map[string]string{"missing": "missing", "empty": "no libnvrtc.so", "other": "libnvrtc.so.12"} {
		_, err := open(system{pythons: pythons.Search{Root: root}, nvrtc: filepath.Join(root, name)})
		if !errors.Is(err, cuda.ErrUnsupported) || !strings.Contains(err.Error(), "WEFT_NVRTC names") ||
			!strings.Contains(err.Error(), say) {
			t.Errorf("%s: error %v, want one that says %q", name, err, say)
		}
		if _, ok := errors.AsType[*SearchError](err); !ok {
			t.Errorf("%s: error %v, want a SearchError", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "cuda-13.0") {
			t.Errorf("%s: something else was tried: %v", name, err)
		}
	}
}

// TestWrongLibrary: a library that is not NVRTC is refused by what it lacks.
func TestWrongLibrary(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no libc.so.6")
	}
	_, err := OpenFile("libc.so.6")
	if !errors.Is(err, cuda.ErrUnsupported) || !strings.Contains(err.Error(), "nvrtcVersion") {
		t.Errorf("error %v", err)
	}
}
