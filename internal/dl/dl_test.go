package dl_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/internal/dl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func libc(t testing.TB) *dl.Library {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skipf("no libc.so.6 on %s", runtime.GOOS)
	}
	l, err := dl.Open("libc.so.6")
	if errors.Is(err, dl.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func lookup(t testing.TB, symbol string) dl.Func {
	t.Helper()
	f, err := libc(t).Lookup(symbol)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCall(t *testing.T) {
	abs := lookup(t, "abs")
	for _, v := range []int32{0, 1, -1, 7, -1 << 30} {
		want := max(v, -v)
		if got := int32(abs.Call(uintptr(uint32(v)))); got != want {
			t.Errorf("abs(%d) = %d", v, got)
		}
	}
	labs := lookup(t, "labs")
	if got := int64(labs.Call(^uintptr(1<<40 - 1))); got != 1<<40 {
		t.Errorf("labs = %#x, want 1<<40: the upper half is lost", got)
	}
}

// TestArguments calls a function with every number of arguments there can be: each must arrive in
// its register or stack slot.
func TestArguments(t *testing.T) {
	snprintf := lookup(t, "snprintf")
	const fixed = 3
	for n := range dl.MaxArgs - fixed + 1 {
		out := make([]byte, 512)
		format := append([]byte(strings.Repeat("%lx,", n)), 0)
		args := []uintptr{address(out), uintptr(len(out)), address(format)}
		var want strings.Builder
		for i := range n {
			v := uintptr(0x1111222233330000 + i)
			args = append(args, v)
			fmt.Fprintf(&want, "%x,", v)
		}
		length := int32(snprintf.Call(args...))
		runtime.KeepAlive(format)
		if got := string(out[:max(length, 0)]); got != want.String() {
			t.Errorf("%d arguments: %q, want %q", len(args), got, want.String())
		}
	}
}

func TestCallAfter(t *testing.T) {
	abs, labs := lookup(t, "abs"), lookup(t, "labs")
	if got := labs.CallAfter(abs, 0, 12); got != 12 {
		t.Errorf("after a zero: %d, want labs's 12", got)
	}
	if got := int32(labs.CallAfter(abs, 5, 12)); got != 5 {
		t.Errorf("after a 5: %d, want 5 and no second call", got)
	}
	// Only the low half of a C int is defined.
	if got := labs.CallAfter(labs, 1<<32, 12); got != 12 {
		t.Errorf("after a zero with dirt above: %#x, want 12", got)
	}
	// The second call's arguments beyond the registers survive the first call.
	snprintf := lookup(t, "snprintf")
	out := make([]byte, 64)
	format := []byte("%d %d %d %d %d %d %d\x00")
	n := int32(snprintf.CallAfter(abs, 0, address(out), uintptr(len(out)), address(format), 1, 2, 3, 4, 5, 6, 7))
	runtime.KeepAlive(format)
	if got := string(out[:n]); got != "1 2 3 4 5 6 7" {
		t.Errorf("got %q", got)
	}
}

// TestSameThread: both calls of CallAfter share a thread, whatever the scheduler does. The witness
// is errno, which each thread has its own of: the first call fails and sets it, the second says
// where it is.
func TestSameThread(t *testing.T) {
	fail, location, memcpy := lookup(t, "fdopendir"), lookup(t, "__errno_location"), lookup(t, "memcpy")
	const badDescriptor = 9
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				seen := new(int32)
				memcpy.Call(uintptr(unsafe.Pointer(seen)), location.CallAfter(fail, ^uintptr(0)), 4)
				if *seen != badDescriptor {
					t.Errorf("errno is %d where the second call ran", *seen)
					return
				}
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
}

// TestStacks calls C while stacks grow and shrink and the collector runs: a frame that moved would
// give a wrong answer.
func TestStacks(t *testing.T) {
	labs := lookup(t, "labs")
	stop := make(chan struct{})
	var wg, collector sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	for g := range 16 {
		wg.Go(func() {
			for i := range 50 {
				if depth := descend(labs, 10+(g*37+i)%200); depth >= 0 {
					t.Errorf("goroutine %d: wrong answer at depth %d", g, depth)
					return
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	collector.Wait()
}

// descend calls C at every depth of the recursion; it returns the depth of a wrong answer, or -1.
//
//go:noinline
func descend(labs dl.Func, depth int) int {
	var pad [256]byte
	pad[depth%256] = 1
	if got := labs.Call(^uintptr(depth - 1)); got != uintptr(depth) {
		return depth
	}
	wrong := -1
	if depth > 0 {
		wrong = descend(labs, depth-1)
	}
	runtime.KeepAlive(&pad)
	return wrong
}

// TestBlocking: a goroutine that waits in C does not keep the others from running, even with one
// processor.
func TestBlocking(t *testing.T) {
	read := lookup(t, "read")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fd, buf := r.Fd(), make([]byte, 1) // Fd makes the pipe block
	defer r.Close()
	got := make(chan uintptr)
	go func() {
		n := read.Call(fd, address(buf), 1)
		got <- n
	}()
	runtime.Gosched()
	if _, err := w.Write([]byte{42}); err != nil {
		t.Fatal(err)
	}
	if n := <-got; n != 1 || buf[0] != 42 {
		t.Errorf("read %d bytes, %d", n, buf[0])
	}
}

func TestPanics(t *testing.T) {
	abs := lookup(t, "abs")
	for name, call := range map[string]func(){
		"nil function":       func() { dl.Func(0).Call() },
		"too many arguments": func() { abs.Call(make([]uintptr, dl.MaxArgs+1)...) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), name) {
					t.Errorf("panic %v, want one that says %q", v, name)
				}
			}()
			call()
		})
	}
}

func TestOpenErrors(t *testing.T) {
	libc(t)
	if _, err := dl.Open(); err == nil {
		t.Error("opening no candidate succeeded")
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				names := []string{fmt.Sprintf("libmissing-%d-%d.so", g, i), fmt.Sprintf("/nowhere/lib-%d-%d.so", g, i)}
				_, err := dl.Open(names...)
				failed := new(dl.OpenError)
				if !errors.As(err, &failed) || len(failed.Tried) != len(names) {
					t.Errorf("error %v, want one for each of %v", err, names)
					return
				}
				for i, name := range names {
					// Twice: once from us, once in the loader's own text, which is lost when
					// threads are mixed up.
					if got := strings.Count(failed.Tried[i].Error(), name); got != 2 {
						t.Errorf("error %q names %s %d times, want the loader's text", failed.Tried[i], name, got)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestOpenTakesTheFirstThatLoads(t *testing.T) {
	libc(t)
	l, err := dl.Open("libmissing.so", "libc.so.6", "libm.so.6")
	if err != nil {
		t.Fatal(err)
	}
	if l.Name() != "libc.so.6" {
		t.Errorf("opened %s", l.Name())
	}
	if _, err := dl.OpenGlobal("libm.so.6"); err != nil {
		t.Error(err)
	}
}

func TestLookupErrors(t *testing.T) {
	_, err := libc(t).Lookup("weft_no_such_symbol")
	missing := new(dl.SymbolError)
	if !errors.As(err, &missing) || missing.Symbol != "weft_no_such_symbol" || missing.Library != "libc.so.6" {
		t.Errorf("error %v, want a SymbolError that names symbol and library", err)
	}
}

func TestAllocations(t *testing.T) {
	abs := lookup(t, "abs")
	var sink uintptr
	if n := testing.AllocsPerRun(1000, func() { sink += abs.Call(1, 2, 3, 4, 5, 6, 7, 8) }); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() { sink += abs.CallAfter(abs, 0, 1, 2, 3, 4) }); n != 0 {
		t.Errorf("two calls allocate %v times", n)
	}
}

func BenchmarkCall(b *testing.B) {
	abs := lookup(b, "abs")
	b.Run("arguments=1", func(b *testing.B) {
		for b.Loop() {
			abs.Call(1)
		}
	})
	b.Run("arguments=6", func(b *testing.B) {
		for b.Loop() {
			abs.Call(1, 2, 3, 4, 5, 6)
		}
	})
	b.Run("arguments=16", func(b *testing.B) {
		for b.Loop() {
			abs.Call(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
		}
	})
	b.Run("after", func(b *testing.B) {
		for b.Loop() {
			abs.CallAfter(abs, 0, 1)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				abs.Call(1)
			}
		})
	})
}

func address(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }
