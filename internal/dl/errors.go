package dl

import (
	"errors"
	"strings"
)

// ErrUnsupported: this platform has no way to call C from Go without cgo.
var ErrUnsupported = errors.New("calling C libraries is unsupported on this platform")

// OpenError says why none of a library's candidates could be opened.
type OpenError struct {
	Tried []error // one for each candidate, in order
}

func (e *OpenError) Error() string {
	texts := make([]string, len(e.Tried))
	for i, err := range e.Tried {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives the errors of all candidates.
func (e *OpenError) Unwrap() []error { return e.Tried }

// SymbolError names a symbol that a library does not have.
type SymbolError struct {
	Library, Symbol string
}

func (e *SymbolError) Error() string { return e.Library + " has no symbol " + e.Symbol }
