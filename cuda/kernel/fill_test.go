package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestFill: a directory that was filled serves a cache that has no compiler.
func TestFill(t *testing.T) {
	dir := filepath.Join(newDir(t), "to", "carry")
	f := &fake{}
	filler, log := cacheIn(newDir(t), f)
	mustLoad(t, filler, spec(0)) // what the cache has is not compiled again
	if err := filler.Fill(testContext(t), dir, append(specs(4), spec(2))); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if f.times(spec(i).Name) != 1 {
			t.Errorf("kernel%d: compiled %d times", i, f.times(spec(i).Name))
		}
	}
	if names := files(t, dir); len(names) != 4 {
		t.Errorf("there are %q, want four entries and nothing else", names)
	}
	log.none(t)
	if runtime.GOOS != "windows" {
		for path, want := range map[string]os.FileMode{dir: 0o755, entryPath(dir, spec(1)): 0o644} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o755 != want&^umask(t) {
				t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
			}
		}
	}

	none := func() (Compiler, error) { return nil, errors.New("none") }
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	server := New(Options{Compiler: none, Dir: newDir(t), ReadOnly: []string{moved}})
	for i := range 4 {
		mustLoad(t, server, spec(i))
	}
	if _, err := server.Load(testContext(t), spec(4)); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("what it has not: %v", err)
	}
}

// umask is what new files lack, found by making one.
func umask(t *testing.T) os.FileMode {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "umask"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o777)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return 0o777 &^ info.Mode().Perm()
}

// TestFillAgain: sound entries stay, bad ones are replaced, failures do not keep the others out.
func TestFillAgain(t *testing.T) {
	dir := newDir(t)
	filler, _ := cacheIn(newDir(t), &fake{begin: func(_ context.Context, s Spec) error {
		if s.Name == "kernel1" {
			return errors.New("broken")
		}
		return nil
	}})
	err := filler.Fill(testContext(t), dir, specs(3))
	if err == nil || err.Error() != "kernel kernel1 for sm_90a: broken" {
		t.Errorf("have %v", err)
	}
	sound, bad := entryPath(dir, spec(0)), entryPath(dir, spec(2))
	before, err := os.Stat(sound)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("bad"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := filler.Fill(testContext(t), dir, []Spec{spec(0), spec(2)}); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(sound); err != nil || !os.SameFile(before, after) {
		t.Errorf("a sound entry was replaced: %v", err)
	}
	if err := Verify(dir); err != nil {
		t.Error(err)
	}
}

// TestFillOfWhatIsThere: what a directory has is neither compiled nor looked for, and what is
// refused in it is told of.
func TestFillOfWhatIsThere(t *testing.T) {
	dir, f := newDir(t), &fake{}
	filler, _ := cacheIn(newDir(t), f)
	if err := filler.Fill(testContext(t), dir, specs(3)); err != nil {
		t.Fatal(err)
	}
	another, own := newDir(t), &fake{}
	filler, log := cacheIn(another, own)
	if err := os.WriteFile(entryPath(dir, spec(1)), []byte("bad"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := filler.Fill(testContext(t), dir, append(specs(4), spec(3), spec(1))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"kernel0": 0, "kernel1": 1, "kernel2": 0, "kernel3": 1} {
		if got := own.times(name); got != want {
			t.Errorf("%s: compiled %d times, want %d", name, got, want)
		}
	}
	for _, w := range log.warnings() {
		if !strings.Contains(w, "kernel cache entry refused") || !strings.Contains(w, entryPath(dir, spec(1))) {
			t.Errorf("warning: %q", w)
		}
	}
	if err := Verify(dir); err != nil || len(log.warnings()) == 0 {
		t.Errorf("%v, warnings: %q", err, log.warnings())
	}
}

// TestAbandonedDrafts: what dead writers of any key have left goes when it is old; what is younger,
// or no draft, stays.
func TestAbandonedDrafts(t *testing.T) {
	key := spec(7).Key().String()
	for what, work := range map[string]func(c *Cache, dir string) error{
		"Fill": func(c *Cache, dir string) error {
			return New(Options{
				Compiler: (&fake{}).open, Dir: newDir(t),
				ReadOnly: []string{},
			}).Fill(testContext(t), dir, specs(1))
		},
		"Load": func(c *Cache, dir string) error { _, err := c.Load(testContext(t), spec(0)); return err },
	} {
		dir := newDir(t)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{ // whether it stays
			key + ".OLD" + draftSuffix: false, key + ".NEW" + draftSuffix: true,
			"OLD.notes" + draftSuffix: true, key + ".OLD" + lockSuffix: true,
		}
		for name := range names {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(name, "OLD") {
				old := time.Now().Add(-2 * abandoned)
				if err := os.Chtimes(path, old, old); err != nil {
					t.Fatal(err)
				}
			}
		}
		c, _ := cacheIn(dir, &fake{})
		if err := work(c, dir); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for name, stays := range names {
			if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != stays {
				t.Errorf("%s: %s: %v", what, name, err)
			}
		}
	}
}

// TestFillFails: unlike a cache, a directory to be filled that cannot be is an error.
func TestFillFails(t *testing.T) {
	filler, _ := cacheIn(newDir(t), &fake{})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := filler.Fill(testContext(t), file, specs(1)); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("into a file: %v", err)
	}
	full := errors.New("disk full")
	filler.rename = func(*os.Root, string, string) error { return full }
	if err := filler.Fill(testContext(t), newDir(t), specs(2)); !errors.Is(err, full) ||
		strings.Count(err.Error(), "disk full") != 2 {
		t.Errorf("on a full disk: %v", err)
	}
}

// TestList tells what entries hold and what is wrong with them.
func TestList(t *testing.T) {
	dir := newDir(t)
	c, _ := cacheIn(dir, &fake{})
	if _, err := c.LoadAll(testContext(t), specs(3)); err != nil {
		t.Fatal(err)
	}
	if err := Verify(dir); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{
		strings.Repeat("0", 64) + entrySuffix: "planted",
		strings.Repeat("F", 64) + entrySuffix: "no key of ours",
		"readme.txt":                          "not an entry at all",
		spec(0).Key().String() + ".x.tmp":     "half an entr",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	sound := map[Key]string{}
	var wrong []string
	for _, e := range entries {
		if e.Err != nil {
			wrong = append(wrong, fmt.Sprintf("%.4s: %v", filepath.Base(e.Path), e.Err))
			continue
		}
		sound[e.Key] = e.Name
		if e.Arch != "sm_90a" || e.Library != LibraryVersion || e.Compiler != "fake 1" || e.Size == 0 || e.Written.IsZero() {
			t.Errorf("an entry is %+v", e)
		}
	}
	for _, s := range specs(3) {
		if sound[s.Key()] != s.Name {
			t.Errorf("%s is listed as %q", s.Name, sound[s.Key()])
		}
	}
	if want := fmt.Sprintf("[0000: %v FFFF: its name is no key]", errTooShort); len(sound) != 3 ||
		fmt.Sprint(wrong) != want {
		t.Errorf("%d are sound; wrong are %v, want %s", len(sound), wrong, want)
	}
	if err := Verify(dir); err == nil || !errors.Is(err, errTooShort) {
		t.Errorf("Verify finds %v", err)
	}
	if _, err := List(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a directory that is not there: %v", err)
	}
}
