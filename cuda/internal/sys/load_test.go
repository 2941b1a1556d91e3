package sys

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/internal/dl"
)

// driver is a libcuda in C: a few functions that check what they are given, and the table that
// hands them out by version.
const driver = `
#include <string.h>
typedef int CUresult;
typedef struct { char reserved[64]; } handle;
static __thread void *current;

CUresult cuCtxSetCurrent(void *c) { current = c; return c == (void *)0xbad ? 201 : 0; }
CUresult cuCtxGetCurrent(void **c) { *c = current; return 0; }
CUresult cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
CUresult cuStreamQuery(void *s) { return s == current ? 600 : 0; }
/* two forms of one name: only the second takes 64 bits */
CUresult cuMemAlloc(unsigned *p, unsigned n) { return 999; }
static CUresult alloc2(unsigned long *p, unsigned long n) { *p = n + (unsigned long)current; return 0; }
CUresult cuMemFree_v2(unsigned long p) { return p == 1ul << 40 ? 0 : 1; }
CUresult cuMemsetD8Async(unsigned long p, unsigned char v, unsigned long n, void *s) {
	return p == 1 && v == 0xfe && n == 1ul << 33 && s == (void *)4 ? 0 : 1;
}
CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz,
		unsigned bx, unsigned by, unsigned bz, unsigned shared, void *s, void **p, void **x) {
	return f == (void *)1 && gx == 2 && gy == 3 && gz == 4 && bx == 5 && by == 6 && bz == 7 &&
		shared == 8 && s == (void *)9 && *(int *)p[0] == 10 && !x ? 0 : 1;
}
CUresult cuIpcOpenMemHandle_v2(unsigned long *p, handle h, unsigned flags) {
	for (int i = 0; i < 64; i++) if (h.reserved[i] != (char)(i * 3 + 1)) return 1;
	*p = (unsigned long)current;
	return flags == 1 ? 0 : 2;
}
#ifdef ASK
CUresult cuGetProcAddress_v2(const char *symbol, void **p, int version, unsigned long flags, int *status) {
	*status = 1;
	if (flags) return 1;
	if (!strcmp(symbol, "cuMemAlloc")) { *p = version >= 3020 ? (void *)alloc2 : (void *)cuMemAlloc; return 0; }
	if (!strcmp(symbol, "cuStreamQuery")) { *p = cuStreamQuery; return 0; }
	return 500; /* the others by their exported names */
}
#else
CUresult cuMemAlloc_v2(unsigned long *p, unsigned long n) { return alloc2(p, n); }
#endif
`

// load compiles the driver and fills a table from it.
func load(t *testing.T, flags ...string) *Table {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "driver.c"), filepath.Join(dir, "libdriver.so")
	if err := os.WriteFile(source, []byte(driver), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-shared", "-fPIC", "-O1", "-o", library, source}, flags...)
	if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	l, err := dl.Open(library)
	if errors.Is(err, dl.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return Load(l)
}

// TestLoad calls C through the table, with the functions handed out by version, and by their
// exported names.
func TestLoad(t *testing.T) {
	for name, flags := range map[string][]string{"by version": {"-DASK"}, "by name": nil} {
		t.Run(name, func(t *testing.T) {
			table := load(t, flags...)
			for call, got := range map[string]Result{
				"cuInit":       table.Init(0),
				"cuInit(1)":    table.Init(1) - 1,
				"cuMemFree":    table.MemFree(3, 1<<40),
				"cuMemsetD8":   table.MemsetD8Async(3, 1, 0xfe, 1<<33, 4),
				"cuGraphHides": table.GraphLaunch(3, 1, 2) - Missing,
			} {
				if got != Success {
					t.Errorf("%s: %d off", call, got)
				}
			}
			p := new(Pointer)
			if r := table.MemAlloc(0x1000, p, 1<<34); r != Success || *p != 1<<34+0x1000 {
				t.Errorf("cuMemAlloc: %d, %#x: the form or the context is wrong", r, *p)
			}
			if r := table.StreamQuery(0x77, 0x77); r != 600 {
				t.Errorf("cuStreamQuery: %d, want 600: the context was not current in the call", r)
			}
			if r := table.StreamQuery(0xbad, 1); r != 201 {
				t.Errorf("cuStreamQuery in a context that cannot be set: %d, want the setting's 201", r)
			}
			ten := int32(10)
			params := []unsafe.Pointer{unsafe.Pointer(&ten)}
			if r := table.LaunchKernel(3, 1, 2, 3, 4, 5, 6, 7, 8, 9, &params[0], nil); r != Success {
				t.Errorf("cuLaunchKernel: %d", r)
			}
			var h IpcHandle
			for i := range h {
				h[i] = byte(i*3 + 1)
			}
			if r := table.IpcOpenMemHandle(0x2000, p, h, 1); r != Success || *p != 0x2000 {
				t.Errorf("cuIpcOpenMemHandle: %d, %#x", r, *p)
			}
			if r := table.IpcOpenMemHandle(0xbad, p, h, 1); r != 201 {
				t.Errorf("cuIpcOpenMemHandle in a context that cannot be set: %d", r)
			}
		})
	}
}

// TestComplete: no entry is left to be called and crash, and what a test filled in stays.
func TestComplete(t *testing.T) {
	table := &Table{Init: func(uint32) Result { return 42 }}
	table.Complete()
	if r := table.Init(0); r != 42 {
		t.Errorf("cuInit answers %d", r)
	}
	v := reflect.ValueOf(table).Elem()
	for i := range v.NumField() {
		name, f := v.Type().Field(i).Name, v.Field(i)
		if f.IsNil() {
			t.Errorf("%s is nil", name)
			continue
		}
		if name == "Init" {
			continue
		}
		args := make([]reflect.Value, f.Type().NumIn())
		for i := range args {
			args[i] = reflect.Zero(f.Type().In(i))
		}
		if r := f.Call(args)[0].Int(); Result(r) != Missing {
			t.Errorf("%s answers %d, want Missing", name, r)
		}
	}
	if Since("cuLaunchKernelEx") != 11060 || Since("cuMemAlloc") != 3020 || Since("cuNothing") != 0 {
		t.Error("the versions are wrong")
	}
}

func TestText(t *testing.T) {
	if dl.GoString(nil) != "" || dl.GoString(CString("")) != "" || dl.GoString(CString("text")) != "text" {
		t.Error("text does not come back as it went")
	}
}

func TestCodeNames(t *testing.T) {
	if CodeName(2) != "CUDA_ERROR_OUT_OF_MEMORY" || CodeName(-5) != "" {
		t.Errorf("%q, %q", CodeName(2), CodeName(-5))
	}
}
