package nvrtc

import (
	"fmt"
	"io"
	"strings"
)

// The codes that this package treats on their own.
const (
	success          result = 0
	errorOption      result = 5
	errorCompilation result = 6
	errorBuiltins    result = 7
)

var codeNames = [...]string{
	"success", "out of memory", "program creation failure", "invalid input", "invalid program",
	"invalid option", "compilation",
	"builtin operation failure", "no name expressions after compilation", "no lowered names before compilation",
	"name expression not valid",
	"internal error", "time file write failed", "no PCH create attempted", "PCH create heap exhausted",
	"PCH create", "cancelled",
	"time trace file write failed",
}

// Error is a call of NVRTC that failed for another reason than the program's text.
type Error struct {
	Call string // as NVRTC names it
	Code int
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s: NVRTC error %d", e.Call, e.Code)
	if e.Code > 0 && e.Code < len(codeNames) {
		text += ": " + codeNames[e.Code]
	}
	if result(e.Code) == errorBuiltins {
		text += "; is libnvrtc-builtins of the same version in the folder of libnvrtc?"
	}
	return text
}

// SearchError says why there is no NVRTC, and where [Open] looks for it: its words name WEFT_NVRTC.
type SearchError struct{ Err error }

func (e *SearchError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *SearchError) Unwrap() error { return e.Err }

func check(call string, r result) error {
	if r == success {
		return nil
	}
	return &Error{Call: call, Code: int(r)}
}

// CompileError says that a program, or its options, cannot be compiled. Its text has the first
// error of the log; %+v prints the whole.
type CompileError struct {
	Program, Architecture string
	Log                   string
}

func (e *CompileError) Error() string {
	return fmt.Sprintf("compile %s for %s: %s", e.Program, e.Architecture, e.first())
}

// first is the first line of the log that says error, or the first that says anything.
func (e *CompileError) first() string {
	first := "NVRTC gives no reason"
	for i, line := range nonempty(e.Log) {
		if i == 0 {
			first = line
		}
		if strings.Contains(line, "error") {
			return line
		}
	}
	return first
}

func nonempty(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// Format prints the whole log under %+v.
func (e *CompileError) Format(f fmt.State, verb rune) {
	switch {
	case verb == 'v' && f.Flag('+'):
		_, _ = fmt.Fprintf(f, "compile %s for %s:\n%s", e.Program, e.Architecture, e.Log)
	case verb == 'q':
		_, _ = fmt.Fprintf(f, "%q", e.Error())
	default:
		_, _ = io.WriteString(f, e.Error())
	}
}
