package cuda

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weftgo/weft/cuda/internal/sys"
	"github.com/weftgo/weft/internal/dl"
)

// ErrUnsupported: the library, the symbol, the platform or the device cannot do it. The error's
// text names the way out.
var ErrUnsupported = errors.New("unsupported")

// ErrClosed: the object was closed by its owner.
var ErrClosed = errors.New("closed")

// Code is the driver's own number for an error. It is an error itself, so that it can be looked for
// with [errors.Is].
type Code int32

// The codes that callers branch on.
const (
	ErrInvalidValue          Code = 1
	ErrOutOfMemory           Code = 2
	ErrDeinitialized         Code = 4 // the process is ending, and the driver has gone before its user
	ErrStubLibrary           Code = 34
	ErrNoDevice              Code = 100
	ErrInvalidDevice         Code = 101
	ErrInvalidContext        Code = 201
	ErrNoBinaryForGPU        Code = 209
	ErrPeerUnsupported       Code = 217
	ErrInvalidPTX            Code = 218
	ErrInvalidHandle         Code = 400
	ErrNotFound              Code = 500
	ErrNotReady              Code = 600
	ErrIllegalAddress        Code = 700
	ErrLaunchResources       Code = 701
	ErrPeerAlreadyEnabled    Code = 704
	ErrPeerNotEnabled        Code = 705
	ErrHostAlreadyRegistered Code = 712
	ErrHostNotRegistered     Code = 713
	ErrMisalignedAddress     Code = 716
	ErrLaunchFailed          Code = 719
	ErrCooperativeTooLarge   Code = 720
	ErrNotPermitted          Code = 800
	ErrNotSupported          Code = 801
	ErrSystemNotReady        Code = 802
	ErrCaptureUnsupported    Code = 900
	ErrCaptureInvalidated    Code = 901
	ErrCaptureUnjoined       Code = 904
	ErrCaptureIsolation      Code = 905
	ErrCaptureWrongThread    Code = 908

	errNewerDriver Code = 36
)

// Error is the code's name, as in CUDA_ERROR_OUT_OF_MEMORY.
func (c Code) Error() string {
	if name := sys.CodeName(sys.Result(c)); name != "" {
		return name
	}
	return fmt.Sprintf("CUDA error %d", int32(c))
}

// Sticky says whether the context is lost: every later call fails in the same way until the process
// ends.
func (c Code) Sticky() bool {
	switch c {
	case 214, 220, 226, // uncorrectable and contained memory or link errors
		ErrIllegalAddress, 702, 710, 714, 715, ErrMisalignedAddress, 717, 718, ErrLaunchFailed, // the kernel's error
		721, 810: // tensor memory, the MPS server's end
		return true
	}
	return false
}

// Error is a call of the driver that failed. It wraps its [Code].
type Error struct {
	Call string // as the driver names it: cuMemAlloc
	Code Code
	Text string // the driver's text, and details
}

func (e *Error) Error() string { return e.Call + ": " + e.Code.Error() + ": " + e.Text }

// Unwrap gives the code.
func (e *Error) Unwrap() error { return e.Code }

// Is makes the driver's refusals answer to [ErrUnsupported] as well.
func (e *Error) Is(target error) bool {
	return target == ErrUnsupported && (e.Code == ErrNotSupported || e.Code == errNewerDriver || e.Code == ErrStubLibrary)
}

// wayOut is the advice for codes whose name does not say it.
var wayOut = map[Code]string{
	ErrStubLibrary: "this libcuda only serves to link programs: take the toolkit's stubs folder out of LD_LIBRARY_PATH",
	ErrNoDevice:    "is a GPU visible to this process and container (nvidia-smi, CUDA_VISIBLE_DEVICES)?",
	803: "the driver's libraries and its kernel module differ in version: reload the module " +
		"or restart the machine",
	ErrSystemNotReady: "a machine with NVSwitch needs nvidia-fabricmanager to run",
}

// check turns an entry's answer into an error. It is small so that the usual answer costs a
// comparison.
func (d *Driver) check(call string, r sys.Result) error {
	if r == sys.Success {
		return nil
	}
	return d.failure(call, r)
}

func (d *Driver) failure(call string, r sys.Result) error {
	if r == sys.Missing {
		return fmt.Errorf("%w: %s is not in this driver (CUDA %v): install one of CUDA %v or newer",
			ErrUnsupported, call, d.version, Version(sys.Since(call)))
	}
	e := &Error{Call: call, Code: Code(r), Text: d.text(r)}
	if advice := wayOut[e.Code]; advice != "" {
		e.Text += "; " + advice
	}
	return e
}

// text asks the driver, which knows codes that are newer than this package.
func (d *Driver) text(r sys.Result) string {
	p := new(*byte)
	if d.table.GetErrorString(r, p) == sys.Success && *p != nil {
		return dl.GoString(*p)
	}
	if d.table.GetErrorName(r, p) == sys.Success && *p != nil {
		return plain(dl.GoString(*p))
	}
	if name := sys.CodeName(r); name != "" {
		return plain(name)
	}
	return "the driver does not know this code"
}

// plain makes words of a code's name.
func plain(name string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "CUDA_ERROR_"), "_", " "))
}

// closed says that a call was made on an object after its Close.
func closed(call string) error { return fmt.Errorf("%s: %w", call, ErrClosed) }

// missing says that an object was nil.
func missing(call, what string) error { return invalid(call, "the %s is nil", what) }

// invalid says that an argument was refused before the driver saw it.
func invalid(call, format string, args ...any) error {
	return &Error{Call: call, Code: ErrInvalidValue, Text: fmt.Sprintf(format, args...)}
}
