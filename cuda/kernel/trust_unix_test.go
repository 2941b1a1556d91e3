//go:build unix

package kernel

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// stranger is a user that no test runs as.
const stranger = 65533

// chown gives a file to a stranger, which only root can.
func chown(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root")
	}
	if err := os.Lchown(path, stranger, stranger); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, raw []byte, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// spoiled are the ways in which an entry can be wrong: each makes a sound one so.
var spoiled = map[string]struct {
	spoil func(t *testing.T, path string, raw []byte)
	want  string
}{
	"planted": {func(t *testing.T, path string, _ []byte) {
		write(t, path, []byte(strings.Repeat("planted", 100)), 0o600)
	}, errMagic.Error()},
	"empty": {func(t *testing.T, path string, _ []byte) { write(t, path, nil, 0o600) }, errTooShort.Error()},
	"truncated": {
		func(t *testing.T, path string, raw []byte) { write(t, path, raw[:len(raw)-1], 0o600) },
		errSum.Error(),
	},
	"grown": {
		func(t *testing.T, path string, raw []byte) { write(t, path, append(raw, 0), 0o600) },
		errSum.Error(),
	},
	"bit flipped": {func(t *testing.T, path string,
		raw []byte,
	) {
		raw[len(raw)-40] ^= 1
		write(t, path, raw, 0o600)
	}, errSum.Error()},
	"sparse": {func(t *testing.T, path string, _ []byte) { truncate(t, path, 1<<40) }, errTooLarge.Error()},
	"another key's": {
		func(t *testing.T, path string, _ []byte) { write(t, path, otherEntry(t), 0o600) },
		errOtherKey.Error(),
	},
	"group-writable": {
		func(t *testing.T, path string, raw []byte) { write(t, path, raw, 0o620) },
		"others than its owner can write it (mode 0620)",
	},
	"world-writable": {
		func(t *testing.T, path string, raw []byte) { write(t, path, raw, 0o602) },
		"others than its owner can write it (mode 0602)",
	},
	"a stranger's": {func(t *testing.T, path string, _ []byte) { chown(t, path) }, "it belongs to user 65533"},
	"a link to a sound entry in the same folder": {func(t *testing.T, path string, _ []byte) {
		move(t, path, path+".target")
		link(t, filepath.Base(path)+".target", path)
	}, errSymlink.Error()},
	"a link to a sound entry elsewhere": {func(t *testing.T, path string, _ []byte) {
		target := filepath.Join(t.TempDir(), "target")
		move(t, path, target)
		link(t, target, path)
	}, errSymlink.Error()},
	"a link to nothing": {func(t *testing.T, path string, _ []byte) {
		move(t, path, path+".gone")
		link(t, "nothing", path)
	}, errSymlink.Error()},
	"a pipe": {func(t *testing.T, path string, _ []byte) {
		move(t, path, path+".gone")
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}, errNoFile.Error()},
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Skipf("no sparse files here: %v", err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// otherEntry is a sound entry of another kernel.
func otherEntry(t *testing.T) []byte {
	c := sample()
	c.Key = spec(7).Key()
	return encoded(t, c)
}

// TestRefusedEntries: each is told of once, compiled anew and replaced, and the next cache reads it
// in silence.
func TestRefusedEntries(t *testing.T) {
	for what, c := range spoiled {
		t.Run(what, func(t *testing.T) {
			dir := newDir(t)
			path := entryPath(dir, spec(1))
			spoilEntry(t, dir, c.spoil)
			f := &fake{}
			cache, log := cacheIn(dir, f)
			mustLoad(t, cache, spec(1))
			if f.times("kernel1") != 1 {
				t.Errorf("compiled %d times", f.times("kernel1"))
			}
			log.one(t, "kernel cache entry refused", path, c.want)

			if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
				t.Errorf("in its place is %v, %v", info.Mode(), err)
			}
			cache, log = cacheIn(dir, f)
			mustLoad(t, cache, spec(1))
			log.none(t)
			if f.times("kernel1") != 1 {
				t.Errorf("it was not replaced: compiled %d times", f.times("kernel1"))
			}
		})
	}
}

// spoilEntry makes a sound entry of kernel1 in a directory, and spoils it.
func spoilEntry(t *testing.T, dir string, spoil func(t *testing.T, path string, raw []byte)) {
	t.Helper()
	cache, _ := cacheIn(dir, &fake{})
	mustLoad(t, cache, spec(1))
	path := entryPath(dir, spec(1))
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spoil(t, path, raw)
}

// TestRefusedEntriesOfReadOnlyDirectories: likewise, but they stay as they are, and a later
// directory that has the kernel serves.
func TestRefusedEntriesOfReadOnlyDirectories(t *testing.T) {
	for what, c := range spoiled {
		t.Run(what, func(t *testing.T) {
			bad, good := newDir(t), newDir(t)
			spoilEntry(t, bad, c.spoil)
			path := entryPath(bad, spec(1))
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			f, log := &fake{}, newJournal()
			mustLoad(t, New(Options{Compiler: f.open, Dir: newDir(t), ReadOnly: []string{bad}, Logger: log.logger()}), spec(1))
			if f.times("kernel1") != 1 {
				t.Errorf("compiled %d times", f.times("kernel1"))
			}
			log.one(t, "kernel cache entry refused", path, c.want)
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("the entry was replaced: %v", err)
			}
			filler, _ := cacheIn(newDir(t), &fake{})
			if err := filler.Fill(testContext(t), good, []Spec{spec(1)}); err != nil {
				t.Fatal(err)
			}
			mustLoad(t, New(Options{Compiler: f.open, Dir: newDir(t), ReadOnly: []string{bad, good}}), spec(1))
			if f.times("kernel1") != 1 {
				t.Error("the second directory was not looked at")
			}
		})
	}
}

// TestWithLogger: the same cache tells another logger, and shares what it has.
func TestWithLogger(t *testing.T) {
	dir, f := newDir(t), &fake{}
	spoilEntry(t, dir, func(t *testing.T, path string, _ []byte) { write(t, path, []byte("bad"), 0o600) })
	cache, log := cacheIn(dir, f)
	another := newJournal()
	mustLoad(t, cache.WithLogger(another.logger()), spec(1))
	another.one(t, "kernel cache entry refused", entryPath(dir, spec(1)))
	log.none(t)
	mustLoad(t, cache, spec(1))
	mustLoad(t, cache.WithLogger(nil), spec(1))
	if f.times("kernel1") != 1 || cache.WithLogger(nil).Dir() != dir {
		t.Errorf("compiled %d times", f.times("kernel1"))
	}
}

// TestAnEntryThatCannotBeReplaced: a directory in its place. The kernel is there, with a warning
// about each.
func TestAnEntryThatCannotBeReplaced(t *testing.T) {
	dir := newDir(t)
	spoilEntry(t, dir, func(t *testing.T, path string, _ []byte) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	cache, log := cacheIn(dir, &fake{})
	mustLoad(t, cache, spec(1))
	if w := log.warnings(); len(w) != 2 || !strings.Contains(w[0], errNoFile.Error()) ||
		!strings.Contains(w[1], "kernel cache cannot be written") {
		t.Errorf("warnings: %q", w)
	}
	for _, name := range files(t, dir) {
		if strings.HasSuffix(name, draftSuffix) {
			t.Errorf("%s is left", name)
		}
	}
}

// TestRefusedDirectories: nothing in them is believed, nor written.
func TestRefusedDirectories(t *testing.T) {
	chmod := func(mode fs.FileMode) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"group-writable": {chmod(0o770), "others than its owner can write it (mode 0770)"},
		"world-writable": {chmod(0o777), "others than its owner can write it (mode 0777)"},
		"sticky":         {chmod(0o777 | fs.ModeSticky), "others than its owner can write it (mode 0777)"},
		"a stranger's":   {chown, "it belongs to user 65533"},
		"a link": {func(t *testing.T, dir string) {
			move(t, dir, dir+".target")
			link(t, dir+".target", dir)
		}, errSymlink.Error()},
		"a file": {func(t *testing.T, dir string) {
			move(t, dir, dir+".gone")
			write(t, dir, nil, 0o600)
		}, "not a directory"},
	} {
		t.Run(what, func(t *testing.T) {
			dir, f := newDir(t), &fake{}
			cache, _ := cacheIn(dir, &fake{})
			mustLoad(t, cache, spec(1))
			c.spoil(t, dir)

			own, log := cacheIn(dir, f)
			mustLoad(t, own, spec(1))
			mustLoad(t, own, spec(2))
			log.one(t, "kernel cache not used", dir, c.want)
			if f.times("kernel1") != 1 {
				t.Error("an entry is believed")
			}
			if _, err := os.Lstat(entryPath(dir, spec(2))); err == nil {
				t.Error("an entry was written")
			}
			// With a slash at its end too, which would follow a link.
			log = newJournal()
			mustLoad(t, New(Options{
				Compiler: f.open, Dir: newDir(t), ReadOnly: []string{dir + "/"},
				Logger: log.logger(),
			}), spec(1))
			log.one(t, "kernel cache not used", dir, c.want)
			if f.times("kernel1") != 2 {
				t.Error("an entry is believed where it is read only")
			}
			if err := own.Fill(testContext(t), dir, specs(1)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Fill: %v, want %s", err, c.want)
			}
			if err := Verify(dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Verify: %v, want %s", err, c.want)
			}
		})
	}
}

// TestTrust: who may have written what.
func TestTrust(t *testing.T) {
	for _, c := range []struct {
		user, owner uint32
		mode        fs.FileMode
		want        bool
	}{
		{1000, 1000, 0o600, true},
		{1000, 1000, 0o755, true},
		{1000, 0, 0o644, true},
		{0, 0, 0o644, true},
		{0, 1000, 0o600, false},
		{1000, 1001, 0o600, false},
		{1000, 0, 0o664, false},
		{1000, 1000, 0o602, false},
		{1000, 1000, 0o020, false},
	} {
		if err := trustedAs(c.user, c.owner, c.mode); (err == nil) != c.want {
			t.Errorf("user %d, owner %d, mode %04o: %v", c.user, c.owner, c.mode, err)
		}
	}
}

// TestLinkInPlaceOfALock: it is not followed, and what it points to is not made.
func TestLinkInPlaceOfALock(t *testing.T) {
	dir := newDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	link(t, "victim", filepath.Join(dir, spec(1).Key().String()+lockSuffix))
	cache, log := cacheIn(dir, &fake{})
	mustLoad(t, cache, spec(1))
	log.one(t, "kernel cache cannot be written", errSymlink.Error())
	if _, err := os.Lstat(filepath.Join(dir, "victim")); err == nil {
		t.Error("the link was followed")
	}
}
