package dl

import (
	"errors"
	"slices"
	"strings"
)

// ErrUnsupported: this platform has no way to call C from Go without cgo.
var ErrUnsupported = errors.New("calling C libraries is unsupported on this platform")

// OpenError says why none of a library's candidates could be opened.
type OpenError struct {
	Tried []error // one for each candidate, in order
	first string
}

// Error is why those did not load that were found, or which library was not found. All that was tried is
// in Tried.
func (e *OpenError) Error() string {
	var texts []string
	for _, err := range e.Tried {
		if !missing(err) {
			texts = append(texts, err.Error())
		}
	}
	if texts == nil {
		return e.first + " was not found"
	}
	return strings.Join(texts, "; ")
}

// Missing reports whether there is no file of any candidate's name.
func (e *OpenError) Missing() bool {
	return !slices.ContainsFunc(e.Tried, func(err error) bool { return !missing(err) })
}

// missing knows the text of glibc's loader.
func missing(err error) bool {
	return strings.HasSuffix(err.Error(), ": cannot open shared object file: No such file or directory")
}

// Unwrap gives the errors of all candidates.
func (e *OpenError) Unwrap() []error { return e.Tried }

// SymbolError names a symbol that a library does not have.
type SymbolError struct {
	Library, Symbol string
}

func (e *SymbolError) Error() string { return e.Library + " has no symbol " + e.Symbol }
