package dl

import (
	"errors"
	"fmt"
	"runtime"
)

// A Library is an open shared library. Libraries stay open: their threads and exit handlers cannot
// be taken back. It is safe for concurrent use.
type Library struct {
	name   string
	handle uintptr
}

// A Visibility says which other libraries of the process find a library's symbols.
type Visibility uint8

const (
	// Local symbols are found by Lookup only.
	Local Visibility = iota
	// Global symbols also resolve those of libraries that are opened later.
	Global
)

// Open opens the first of the candidates that loads. A name without a slash is looked for where the
// system's loader looks. If none loads the error is an [*OpenError] that has the loader's text for
// each.
func Open(candidates ...string) (*Library, error) { return open(Local, candidates) }

// OpenGlobal is Open with [Global] visibility.
func OpenGlobal(candidates ...string) (*Library, error) { return open(Global, candidates) }

func open(v Visibility, candidates []string) (*Library, error) {
	if len(candidates) == 0 {
		return nil, errors.New("open a library: no name given")
	}
	// The loader keeps its error text per thread: the thread that failed must be the one that asks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	failed := &OpenError{first: candidates[0]}
	for _, name := range candidates {
		handle, err := openHandle(name, v)
		if err == nil {
			return &Library{name: name, handle: handle}, nil
		}
		failed.Tried = append(failed.Tried, fmt.Errorf("open %s: %w", name, err))
	}
	return nil, failed
}

// Name is the candidate that was opened.
func (l *Library) Name() string { return l.name }

// Lookup finds a C function. The error is a [*SymbolError] if the library does not have it.
func (l *Library) Lookup(symbol string) (Func, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	address, err := lookup(l.handle, symbol)
	if errors.Is(err, ErrUnsupported) {
		return 0, err
	}
	if err != nil || address == 0 {
		return 0, &SymbolError{Library: l.name, Symbol: symbol}
	}
	return Func(address), nil
}
