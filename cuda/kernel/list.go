package kernel

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Entry is a file of a cache's directory, for diagnostics.
type Entry struct {
	Path    string
	Written time.Time
	// Err says why the entry would be refused. If it is nil the other fields describe the entry;
	// see [Cubin].
	Err error

	Key                           Key
	Name, Arch, Library, Compiler string
	Size                          int // of the image, in bytes
}

// List reads all entries of a directory, by name. The error is about the directory itself; if it
// can be read it is listed all the same.
func List(dir string) ([]Entry, error) {
	d, err := openAny(dir)
	if err != nil {
		return nil, fmt.Errorf("kernel cache %s: %w", dir, err)
	}
	defer d.close()
	names, err := d.names()
	if untrusted := d.trusted(); err == nil {
		err = untrusted
	}
	if err != nil {
		err = fmt.Errorf("kernel cache %s: %w", dir, err)
	}
	slices.Sort(names)
	var entries []Entry
	for _, name := range names {
		if key, ok := strings.CutSuffix(name, entrySuffix); ok {
			entries = append(entries, d.entry(name, key))
		}
	}
	return entries, err
}

func (d *directory) entry(name, key string) Entry {
	e := Entry{Path: filepath.Join(d.path, name)}
	k, err := parseKey(key)
	if err != nil {
		e.Err = err
		return e
	}
	cubin, info, err := d.read(k)
	if info != nil {
		e.Written = info.ModTime()
	}
	if e.Err = err; err == nil {
		e.Key, e.Name, e.Arch = k, cubin.Name, cubin.Arch
		e.Library, e.Compiler, e.Size = cubin.Library, cubin.Compiler, cubin.Size()
	}
	return e
}

func parseKey(text string) (Key, error) {
	var k Key
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(k) || hex.EncodeToString(raw) != text {
		return k, errors.New("its name is no key")
	}
	return Key(raw), nil
}

// Verify is List without the entries: only the problems of a directory and its entries.
func Verify(dir string) error {
	entries, err := List(dir)
	errs := []error{err}
	for _, e := range entries {
		if e.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.Path, e.Err))
		}
	}
	return errors.Join(errs...)
}
