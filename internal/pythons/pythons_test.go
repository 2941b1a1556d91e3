package pythons_test

import (
	"os"
	"path/filepath"
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
