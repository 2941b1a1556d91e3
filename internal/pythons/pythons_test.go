package pythons_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/internal/pythons"
)

// TestPrefixes: what variables name comes first, then the first Python of PATH, by its link and by
// what the link leads to, then the user's folder and the system's.
func TestPrefixes(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(root, name) }
	for _, folder := range []string{"venv/bin", "usr/bin", "other/bin"} {
		if err := os.MkdirAll(in(folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"usr/bin/python3", "other/bin/python3"} {
		if err := os.WriteFile(in(program), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(in("usr/bin/python3"), in("venv/bin/python3")); err != nil {
		t.Fatal(err)
	}
	got := pythons.Search{
		Root: root, Home: in("home"), Named: []string{in("named")},
		Path: []string{in("nowhere"), in("venv/bin"), in("other/bin")},
	}.Prefixes()
	want := []string{in("named"), in("venv"), in("usr"), in("home/.local"), in("usr/local")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestOwn: a program in an environment finds that first, started by its path or by a link there.
func TestOwn(t *testing.T) {
	if os.Getenv("WEFT_TEST_PREFIXES") != "" {
		fmt.Println("first:", pythons.FromEnvironment().Prefixes()[0])
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	venv := filepath.Join(t.TempDir(), "venv")
	if err := os.MkdirAll(filepath.Join(venv, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(venv, "bin", "program")
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	for _, marked := range []bool{false, true} {
		if marked {
			if err := os.WriteFile(filepath.Join(venv, "pyvenv.cfg"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		run := exec.CommandContext(t.Context(), link, "-test.run=^TestOwn$")
		run.Env = append(os.Environ(), "WEFT_TEST_PREFIXES=1", "VIRTUAL_ENV=/elsewhere")
		out, err := run.CombinedOutput()
		want := "/elsewhere"
		if marked {
			want = venv
		}
		if err != nil || !strings.Contains(string(out), "first: "+want+"\n") {
			t.Errorf("marked %v: %v\n%s\nwant %s", marked, err, out, want)
		}
	}
}
