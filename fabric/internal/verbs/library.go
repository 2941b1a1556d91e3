package verbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/weftgo/weft/internal/dl"
)

// ErrUnavailable: the libraries are not there, or too old.
var ErrUnavailable = errors.New("verbs are unavailable")

// FolderVariable names the folder that has the libraries, where the system's loader does not know it.
const FolderVariable = "WEFT_LIBIBVERBS"

const verbsName, mlx5Name = "libibverbs.so.1", "libmlx5.so.1"

// Library is both libraries, open. It is safe for concurrent use.
type Library struct {
	getDeviceList, freeDeviceList, getDeviceName dl.Func
	openDevice, closeDevice                      dl.Func
	queryPort, queryGID                          dl.Func
	allocDomain, deallocDomain                   dl.Func
	register, registerDMABuf, deregister         dl.Func
	createCompletions, destroyCompletions        dl.Func
	createQueue, modifyQueue, destroyQueue       dl.Func
	isSupported, initObject                      dl.Func
	errno                                        dl.Func

	mu    sync.Mutex
	count int32 // what ibv_get_device_list writes to
}

// opened are the libraries of this process, by their folder. Libraries stay open.
var opened = struct {
	sync.Mutex
	of map[string]*Library
}{of: map[string]*Library{}}

// Open opens the libraries: those of the folder in WEFT_LIBIBVERBS, else those that the system's loader finds.
func Open() (*Library, error) {
	folder := os.Getenv(FolderVariable)
	opened.Lock()
	defer opened.Unlock()
	if l := opened.of[folder]; l != nil {
		return l, nil
	}
	l, err := open(folder)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	opened.of[folder] = l
	return l, nil
}

func open(folder string) (*Library, error) {
	l := new(Library)
	verbs, err := load(folder, verbsName)
	if err != nil {
		return nil, err
	}
	mlx5, err := load(folder, mlx5Name)
	if err != nil {
		return nil, err
	}
	for _, s := range []struct {
		of   *dl.Library
		name string
		fn   *dl.Func
	}{
		{verbs, "ibv_get_device_list", &l.getDeviceList},
		{verbs, "ibv_free_device_list", &l.freeDeviceList},
		{verbs, "ibv_get_device_name", &l.getDeviceName},
		{verbs, "ibv_open_device", &l.openDevice},
		{verbs, "ibv_close_device", &l.closeDevice},
		{verbs, "ibv_query_port", &l.queryPort},
		{verbs, "_ibv_query_gid_ex", &l.queryGID}, // since 31
		{verbs, "ibv_alloc_pd", &l.allocDomain},
		{verbs, "ibv_dealloc_pd", &l.deallocDomain},
		{verbs, "ibv_reg_mr", &l.register},
		{verbs, "ibv_reg_dmabuf_mr", &l.registerDMABuf}, // since 34
		{verbs, "ibv_dereg_mr", &l.deregister},
		{verbs, "ibv_create_cq", &l.createCompletions},
		{verbs, "ibv_destroy_cq", &l.destroyCompletions},
		{verbs, "ibv_create_qp", &l.createQueue},
		{verbs, "ibv_modify_qp", &l.modifyQueue},
		{verbs, "ibv_destroy_qp", &l.destroyQueue},
		{verbs, "__errno_location", &l.errno}, // of libc, on which the library depends
		{mlx5, "mlx5dv_is_supported", &l.isSupported},
		{mlx5, "mlx5dv_init_obj", &l.initObject},
	} {
		if *s.fn, err = s.of.Lookup(s.name); err != nil {
			return nil, fmt.Errorf("%w: install rdma-core 34 or later", err)
		}
	}
	return l, nil
}

// load opens one of the libraries.
func load(folder, name string) (*dl.Library, error) {
	l, err := dl.Open(filepath.Join(folder, name))
	if missing, ok := errors.AsType[*dl.OpenError](err); ok && missing.Missing() {
		return nil, fmt.Errorf("%s was not found: install rdma-core (Debian: ibverbs-providers) or name its folder in %s",
			name, FolderVariable)
	}
	return l, err
}

// Error is a call that failed.
type Error struct {
	Call  string
	Errno syscall.Errno
}

func (e *Error) Error() string { return e.Call + ": " + e.Errno.Error() }

func (e *Error) Unwrap() error { return e.Errno }

// pointer makes a call that gives an object, or the reason in errno.
func (l *Library) pointer(name string, f dl.Func, args ...uintptr) (uintptr, error) {
	result, reason := l.call(f, args)
	if result != 0 {
		return result, nil
	}
	return 0, &Error{name, reason}
}

// status makes a call that gives 0, the reason, or -1 and the reason in errno.
func (l *Library) status(name string, f dl.Func, args ...uintptr) error {
	result, reason := l.call(f, args)
	switch status := int32(result); {
	case status == 0:
		return nil
	case status < 0:
		return &Error{name, reason}
	default:
		return &Error{name, syscall.Errno(status)}
	}
}

// call makes a call, and looks at the thread's errno behind it.
func (l *Library) call(f dl.Func, args []uintptr) (uintptr, syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	errno := at[int32](l.errno.Call())
	*errno = 0
	result := f.Call(args...)
	return result, syscall.Errno(*errno)
}

// at is an object of the libraries'. Go's collector has no business with it.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }
