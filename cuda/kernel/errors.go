package kernel

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weftgo/weft/cuda/nvrtc"
)

// ErrNoCompiler: something must be compiled and there is no compiler. The error's text says why,
// and the ways out.
var ErrNoCompiler = errors.New("no compiler of CUDA C++")

func noCompiler(reason error) error {
	if _, named := errors.AsType[*nvrtc.SearchError](reason); named { // it names those ways out
		return fmt.Errorf("%w: %w; or name in WEFT_CACHE a cache that weft compile has filled, on any machine", ErrNoCompiler,
			reason)
	}
	return fmt.Errorf("%w: name NVRTC in WEFT_NVRTC, or install it (python3 -m pip install nvidia-cuda-nvrtc), "+
		"or name in WEFT_CACHE a cache that weft compile has filled, on any machine (of one that is there "+
		"weft doctor lists what is refused): %w", ErrNoCompiler, reason)
}

// Error says which kernel is not to be had, and why. %+v prints all of a compiler's log.
type Error struct {
	Name, Arch string
	Err        error
}

func (e *Error) Error() string { return e.head() + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

func (e *Error) head() string { return fmt.Sprintf("kernel %s for %s: ", e.Name, e.Arch) }

// Format passes %+v on to the cause.
func (e *Error) Format(f fmt.State, verb rune) { format(f, verb, e, e.long) }

func (e *Error) long() string { return e.head() + fmt.Sprintf("%+v", e.Err) }

// failures are the errors of several kernels. A cause that several share is printed once, behind the first
// of them.
type failures []*Error

func (f failures) Error() string {
	return f.text(error.Error)
}

func (f failures) long() string {
	return f.text(func(err error) string { return fmt.Sprintf("%+v", err) })
}

func (f failures) text(cause func(error) string) string {
	const named = 3 // of many kernels with one cause
	var groups [][]*Error
	by := map[string]int{}
	for _, e := range f {
		problem := e.Err.Error()
		i, ok := by[problem]
		if !ok {
			i, by[problem] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], e)
	}
	var lines []string
	for _, g := range groups {
		var names []string
		for _, e := range g[:min(len(g), named)] {
			names = append(names, e.Name+" for "+e.Arch)
		}
		if more := len(g) - named; more > 0 {
			names = append(names, fmt.Sprintf("and %d more", more))
		}
		lines = append(lines, "kernel "+strings.Join(names, ", ")+": "+cause(g[0].Err))
	}
	return strings.Join(lines, "\n")
}

// Format passes %+v on to the causes.
func (f failures) Format(s fmt.State, verb rune) { format(s, verb, f, f.long) }

func (f failures) Unwrap() []error {
	errs := make([]error, len(f))
	for i, e := range f {
		errs[i] = e
	}
	return errs
}

// joined are the failures among errs, or nil.
func joined(errs []*Error) error {
	var f failures
	for _, err := range errs {
		if err != nil {
			f = append(f, err)
		}
	}
	switch len(f) {
	case 0:
		return nil
	case 1:
		return f[0]
	}
	return f
}

func format(f fmt.State, verb rune, err error, long func() string) {
	switch {
	case verb == 'v' && f.Flag('+'):
		_, _ = io.WriteString(f, long())
	case verb == 'q':
		_, _ = fmt.Fprintf(f, "%q", err.Error())
	default:
		_, _ = io.WriteString(f, err.Error())
	}
}
