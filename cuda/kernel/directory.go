package kernel

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	entrySuffix = ".cubin"
	lockSuffix  = ".lock"
	draftSuffix = ".tmp"
)

var (
	errSymlink   = errors.New("it is a symbolic link, and those are not followed")
	errNoFile    = errors.New("it is no regular file")
	errUnsettled = errors.New("it is replaced all the time")
)

// A directory is an open folder of entries. Names in it are looked up in the folder that was
// opened, even if its path now means another.
type directory struct {
	root *os.Root
	path string
}

// openDirectory opens a folder that can be trusted.
func openDirectory(path string) (*directory, error) {
	d, err := openAny(path)
	if err != nil {
		return nil, err
	}
	if err := d.trusted(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// makeDirectory is openDirectory for one that may not be there yet.
func makeDirectory(path string, mode fs.FileMode) (*directory, error) {
	if err := os.MkdirAll(path, mode); err != nil {
		return nil, err
	}
	return openDirectory(path)
}

// openAny opens a folder, trusted or not.
func openAny(path string) (*directory, error) {
	path = filepath.Clean(path) // a slash at the end would follow a link
	named, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if named.Mode()&fs.ModeSymlink != 0 {
		return nil, errSymlink
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	opened, err := root.Stat(".")
	if err == nil && !os.SameFile(named, opened) {
		err = errUnsettled
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return &directory{root: root, path: path}, nil
}

func (d *directory) close() { _ = d.root.Close() }

func (d *directory) trusted() error {
	info, err := d.root.Stat(".")
	if err != nil {
		return err
	}
	return trusted(info)
}

// open opens a regular file by its own name. The file's identity comes with most errors, for
// callers that have seen it before.
func (d *directory) open(name string, flag int) (*os.File, fs.FileInfo, error) {
	for range 8 { // the name may get another file between the look and the open
		named, err := d.root.Lstat(name)
		switch {
		case err != nil:
			return nil, nil, err
		case named.Mode()&fs.ModeSymlink != 0:
			return nil, named, errSymlink
		case !named.Mode().IsRegular():
			return nil, named, errNoFile
		}
		f, err := d.root.OpenFile(name, flag, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, named, err
		}
		opened, err := f.Stat()
		if err == nil && os.SameFile(named, opened) {
			return f, opened, nil
		}
		_ = f.Close()
		if err != nil {
			return nil, named, err
		}
	}
	return nil, nil, errUnsettled
}

// read reads a key's entry. An error other than [fs.ErrNotExist] says why there is one that is not
// believed.
func (d *directory) read(key Key) (Cubin, fs.FileInfo, error) {
	f, info, err := d.open(key.String()+entrySuffix, os.O_RDONLY)
	if err != nil {
		return Cubin{}, info, err
	}
	defer f.Close()
	if err := trusted(info); err != nil {
		return Cubin{}, info, err
	}
	if info.Size() > maxEntry {
		return Cubin{}, info, errTooLarge
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxEntry+1))
	if err != nil {
		return Cubin{}, info, err
	}
	c, err := decode(raw)
	if err == nil && c.Key != key {
		err = errOtherKey
	}
	if err != nil {
		return Cubin{}, info, err
	}
	return c, info, nil
}

// write stores a cubin under its key, whole or not at all. If it fails it has left nothing.
func (d *directory) write(c Cubin, mode fs.FileMode, rename func(d *os.Root, from, to string) error) (err error) {
	raw, err := encode(c)
	if err != nil {
		return err
	}
	name := c.Key.String()
	draft := name + "." + rand.Text() + draftSuffix
	f, err := d.root.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = d.root.Remove(draft)
		}
	}()
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync() // a full disk may show only now, and a name must not outlive its file's content
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	// The directory itself is not synced: if the name is lost with the power, the kernel is
	// compiled again.
	return rename(d.root, draft, name+entrySuffix)
}

// abandoned is the age at which a draft has no writer any more. It takes milliseconds; clocks of
// other machines, which may have written it, are wrong by more.
const abandoned = 24 * time.Hour

// sweep removes the drafts of dead writers: those of the key whose lock is held, if one is, and
// abandoned ones of any key.
func (d *directory) sweep(locked string) {
	names, err := d.names()
	if err != nil {
		return // remaining drafts are never read
	}
	for _, name := range names {
		key, rest, _ := strings.Cut(name, ".")
		if _, err := parseKey(key); err != nil || !strings.HasSuffix(rest, draftSuffix) {
			continue
		}
		info, err := d.root.Lstat(name)
		if err == nil && (key == locked || time.Since(info.ModTime()) > abandoned) {
			_ = d.root.Remove(name)
		}
	}
}

// names are those of all files, in no order.
func (d *directory) names() ([]string, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// lockFile opens the key's lock file, and creates it if needed.
func (d *directory) lockFile(key Key) (*os.File, error) {
	name := key.String() + lockSuffix
	for {
		f, _, err := d.open(name, os.O_RDWR)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		f, err = d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}
