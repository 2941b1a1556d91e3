package cuda

import (
	"errors"
	"testing"

	"github.com/weftgo/weft/cuda/internal/sys"
	"github.com/weftgo/weft/internal/dl"
)

// idle is a library whose every symbol is a C function that ignores its arguments and returns 0. It
// makes real crossings into C without a driver.
type idle struct{ nothing dl.Func }

func (l idle) Lookup(symbol string) (dl.Func, error) {
	if symbol == "cuGetProcAddress_v2" {
		return 0, &dl.SymbolError{Library: "idle", Symbol: symbol}
	}
	return l.nothing, nil
}

func openIdle(t testing.TB) idle {
	t.Helper()
	library, err := dl.Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	nothing, err := library.Lookup("pthread_barrierattr_destroy")
	if err != nil {
		t.Skip(err) // a C library with threads apart
	}
	return idle{nothing}
}

// hot are the calls that a program makes in its inner loop.
func hot(t testing.TB) (bare func(), calls []hotCall) {
	t.Helper()
	library := openIdle(t)
	d, err := New(sys.Load(library))
	if err != nil {
		t.Fatal(err)
	}
	d.version = 13000
	c := &Context{driver: d, table: d.table, device: &Device{driver: d}, handle: 1}
	s, e, x := c.WrapStream(8), &Event{context: c, handle: 8}, &GraphExec{context: c, handle: 8}
	f := &Function{module: &Module{context: c, handle: 8}, name: "nothing", handle: 8}
	// The idle driver says that any number of parameters of no size exist: leave out the
	// comparison.
	l, err := f.shape(LaunchConfig{Cluster: Dim{X: 1}, Dependent: true})
	if err == nil {
		err = l.layOut([]any{Pointer(1), int32(2), float32(3)})
	}
	if err != nil {
		t.Fatal(err)
	}
	arg, err := Arg[int32](l, 1)
	if err != nil {
		t.Fatal(err)
	}
	plain := *l
	plain.extended = false
	host := make([]byte, 64)
	return func() { library.nothing.Call(1, 2, 3, 4) }, []hotCall{
		{name: "launch", call: func() error { *arg++; return l.Start(s) }},
		{name: "plain launch", call: func() error { return plain.Start(s) }},
		{name: "event record", call: func() error { return e.Record(s) }},
		{name: "event query", call: func() error { _, err := e.Query(); return err }},
		{name: "event synchronize", call: e.Synchronize},
		{name: "stream wait event", call: func() error { return s.WaitEvent(e) }},
		{name: "capture status", call: func() error { _, err := s.CaptureStatus(); return err }},
		{name: "stream query", call: func() error { _, err := s.Query(); return err }},
		{name: "stream synchronize", call: s.Synchronize},
		{name: "upload", call: func() error { return s.Upload(64, host) }},
		{name: "download", call: func() error { return s.Download(host, 64) }},
		{name: "copy", call: func() error { return s.Copy(64, 128, 64) }},
		{name: "peer copy", call: func() error { return s.CopyPeer(64, c, 128, c, 64) }},
		{name: "memset", call: func() error { return s.Memset(64, 1, 64) }},
		{name: "memset32", call: func() error { return s.Memset32(64, 1, 64) }},
		{name: "graph launch", call: func() error { return x.Launch(s) }},
		{name: "set current", call: c.SetCurrent},
	}
}

type hotCall struct {
	name string
	call func() error
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	_, calls := hot(t)
	for _, h := range calls {
		if n := testing.AllocsPerRun(1000, func() {
			if err := h.call(); err != nil {
				t.Fatalf("%s: %v", h.name, err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", h.name, n)
		}
	}
}

// TestMissingEntries: on a driver that has nothing, calls say what is missing and which driver has
// it.
func TestMissingEntries(t *testing.T) {
	d, err := New(&sys.Table{
		Init:             func(uint32) sys.Result { return sys.Success },
		DriverGetVersion: func(v *int32) sys.Result { *v = 11040; return sys.Success },
		DeviceGetCount:   func(*int32) sys.Result { return sys.Success },
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &Context{driver: d, table: d.table, device: &Device{driver: d}}
	s := c.WrapStream(0)
	f := &Function{module: &Module{context: c}, name: "nothing"}
	l, err := f.Prepare(LaunchConfig{})
	if err != nil {
		t.Fatal(err) // that the parameters cannot be compared is no error
	}
	l.extended = true
	for want, err := range map[string]error{
		"unsupported: cuLaunchKernelEx is not in this driver (CUDA 11.4): install one of CUDA 11.6 or newer": l.Start(s),
		"unsupported: cuStreamQuery is not in this driver (CUDA 11.4): install one of CUDA 2.0 or newer":     queryError(s),
		"unsupported: cuMemCreate is not in this driver (CUDA 11.4): install one of CUDA " +
			"10.2 or newer": d.check("cuMemCreate",
			d.table.MemCreate(0, nil, 0, nil, 0)),
	} {
		if !errors.Is(err, ErrUnsupported) || err.Error() != want && err.Error() != "kernel nothing: "+want {
			t.Errorf("error %q, want %q", err, want)
		}
	}
}

func queryError(s *Stream) error {
	_, err := s.Query()
	return err
}

func TestNoDriver(t *testing.T) {
	_, err := load([]string{"libmissing-a.so", "libmissing-b.so"})
	if !errors.Is(err, ErrUnsupported) {
		t.Fatalf("error %v", err)
	}
	failed := new(dl.OpenError)
	if !errors.Is(err, dl.ErrUnsupported) && (!errors.As(err, &failed) || len(failed.Tried) != 2) {
		t.Errorf("error %v, want what was tried", err)
	}
}

// BenchmarkHot shows what calls of this package add to a bare call of an empty C function. The second
// call that sets the context included, that should stay under 60 ns, or twice that where two more calls
// set the mode of captures.
func BenchmarkHot(b *testing.B) {
	bare, calls := hot(b)
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			bare()
		}
	})
	for _, h := range calls {
		b.Run(h.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := h.call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
