package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftgo/weft/cuda/nvrtc"
)

// TestCompiledOnce: from memory the second time, from the directory by a cache that comes later,
// without opening a compiler.
func TestCompiledOnce(t *testing.T) {
	dir, f := newDir(t), &fake{}
	c, log := cacheIn(dir, f)
	first := mustLoad(t, c, spec(1))
	if mustLoad(t, c, spec(1)) != first || f.times("kernel1") != 1 {
		t.Errorf("compiled %d times, want once", f.times("kernel1"))
	}
	log.none(t)

	later := New(Options{Compiler: func() (Compiler, error) {
		t.Error("the compiler is opened")
		return nil, errors.New("none")
	}, Dir: dir, ReadOnly: []string{}})
	if got := mustLoad(t, later, spec(1)); got != first {
		t.Errorf("read back: %+v, want %+v", got, first)
	}
	if first.Name != "kernel1" || first.Arch != "sm_90a" || first.Library != LibraryVersion ||
		first.Compiler != "fake 1" ||
		first.Log != "remarks on kernel1" || first.Size() != len(first.Image()) {
		t.Errorf("the cubin says %+v", first)
	}
	for name, want := range map[string]string{
		"layer::kernel1":      "symbol of layer::kernel1",
		"scale<unsigned int>": "symbol of scale<unsigned int>", "scale": "scale",
	} {
		if got := mustLoad(t, later, spec(1)).Symbol(name); got != want {
			t.Errorf("the symbol of %s is %q, want %q", name, got, want)
		}
	}
}

// TestImageIsACopy: who changes what he got changes nobody else's.
func TestImageIsACopy(t *testing.T) {
	c, _ := cacheIn(newDir(t), &fake{})
	clear(mustLoad(t, c, spec(1)).Image())
	mustLoad(t, c, spec(1))
}

// TestSameKeyOtherName: specs of the same key are one, and errors name the one that was asked for.
func TestSameKeyOtherName(t *testing.T) {
	c, _ := cacheIn(newDir(t), &fake{})
	a, b := spec(1), spec(1)
	b.Name = "alias"
	if mustLoad(t, c, a) != mustLoad(t, c, b) {
		t.Error("two cubins of one key")
	}
	broken := errors.New("broken")
	c, _ = cacheIn(newDir(t), &fake{begin: func(context.Context, Spec) error { return broken }})
	_, err := c.LoadAll(testContext(t), []Spec{a, b})
	const want = "kernel kernel1 for sm_90a, alias for sm_90a: broken"
	if !errors.Is(err, broken) || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

// waiters is how many requests wait for a key.
func (c *Cache) waiters(key Key) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.searches[key]; s != nil {
		return s.waiters
	}
	return 0
}

// until waits for what only other goroutines can bring about.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !is(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// blocking is a compiler that says that it has begun, and goes on when it is told to or the context
// ends.
func blocking() (f *fake, begun chan string, goOn chan error) {
	begun, goOn = make(chan string, 64), make(chan error)
	return &fake{begin: func(ctx context.Context, s Spec) error {
		begun <- s.Name
		select {
		case err := <-goOn:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}}, begun, goOn
}

// TestRequestsShareOneSearch: in a process too a key is compiled once, and all get the result.
func TestRequestsShareOneSearch(t *testing.T) {
	const n = 16
	f, begun, goOn := blocking()
	c, _ := cacheIn(newDir(t), f)
	s := spec(1)
	results := make([]Cubin, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { results[i], errs[i] = c.Load(testContext(t), s) })
	}
	<-begun
	until(t, "all wait", func() bool { return c.waiters(s.Key()) == n })
	goOn <- nil
	all.Wait()
	for i := range n {
		if errs[i] != nil || results[i] != results[0] {
			t.Errorf("request %d: %+v, %v", i, results[i], errs[i])
		}
	}
	if f.times("kernel1") != 1 {
		t.Errorf("compiled %d times", f.times("kernel1"))
	}
}

// TestImpatientRequest: whose context ends leaves at once, and the others still get what they wait
// for, even if it was the first.
func TestImpatientRequest(t *testing.T) {
	f, begun, goOn := blocking()
	c, _ := cacheIn(newDir(t), f)
	s := spec(1)
	reason := errors.New("changed my mind")
	first, cancel := context.WithCancelCause(testContext(t))
	firstDone, secondDone := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := c.Load(first, s)
		firstDone <- err
	}()
	<-begun
	go func() {
		_, err := c.Load(testContext(t), s)
		secondDone <- err
	}()
	until(t, "both wait", func() bool { return c.waiters(s.Key()) == 2 })
	cancel(reason)
	if err := <-firstDone; !errors.Is(err, reason) {
		t.Errorf("the first: %v, want %v", err, reason)
	}
	goOn <- nil
	if err := <-secondDone; err != nil {
		t.Errorf("the second: %v", err)
	}
	if f.times("kernel1") != 1 {
		t.Errorf("compiled %d times", f.times("kernel1"))
	}
}

// TestNobodyWaits: a search that nobody waits for ends, and who comes next begins anew.
func TestNobodyWaits(t *testing.T) {
	f, begun, goOn := blocking()
	c, _ := cacheIn(newDir(t), f)
	s := spec(1)
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() {
		_, err := c.Load(ctx, s)
		done <- err
	}()
	<-begun
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("have %v, want %v", err, context.Canceled)
	}
	go func() {
		_, err := c.Load(testContext(t), s)
		done <- err
	}()
	<-begun
	goOn <- nil
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := c.Load(ctx, spec(2)); !errors.Is(err, context.Canceled) || f.times("kernel2") != 0 {
		t.Errorf("with a context that has ended: %v, compiled %d times", err, f.times("kernel2"))
	}
	if _, err := c.Load(ctx, s); err != nil {
		t.Errorf("what is in memory needs no time: %v", err)
	}
}

// TestFailureIsNotKept: the next request tries again.
func TestFailureIsNotKept(t *testing.T) {
	broken := errors.New("broken")
	fail := true
	dir := newDir(t)
	c, _ := cacheIn(dir, &fake{begin: func(context.Context, Spec) error {
		if fail {
			return broken
		}
		return nil
	}})
	_, err := c.Load(testContext(t), spec(1))
	var named *Error
	if !errors.As(err, &named) || named.Name != "kernel1" || named.Arch != "sm_90a" || !errors.Is(err, broken) {
		t.Errorf("have %v", err)
	}
	if _, err := os.Stat(entryPath(dir, spec(1))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an entry of a failure: %v", err)
	}
	fail = false
	mustLoad(t, c, spec(1))
}

func TestCompilerThatGivesNothing(t *testing.T) {
	c := New(Options{Compiler: func() (Compiler, error) { return nothing{}, nil }, Dir: newDir(t), ReadOnly: []string{}})
	if cubin, err := c.Load(testContext(t), spec(1)); err == nil {
		t.Errorf("no code, and no error: %+v", cubin)
	}
}

// TestCompilerThatGivesNoSymbols: what nobody could find is refused before it is kept.
func TestCompilerThatGivesNoSymbols(t *testing.T) {
	c := New(Options{
		Compiler: func() (Compiler, error) { return nothing{"code"}, nil }, Dir: newDir(t),
		ReadOnly: []string{},
	})
	if cubin, err := c.Load(testContext(t), spec(1)); err == nil ||
		!strings.Contains(err.Error(), "0 symbols of 2 kernels") {
		t.Errorf("%+v, %v", cubin, err)
	}
}

type nothing struct{ code string }

func (n nothing) Compile(context.Context, Spec) (Code, error) {
	return Code{Image: []byte(n.code)}, nil
}
func (nothing) Version() string { return "nothing" }

// TestLoadAll: in order, with what failed missing and told of, and the rest there.
func TestLoadAll(t *testing.T) {
	broken := errors.New("broken")
	c, _ := cacheIn(newDir(t), &fake{begin: func(_ context.Context, s Spec) error {
		if s.Name == "kernel3" || s.Name == "kernel5" {
			return fmt.Errorf("%s: %w", s.Name, broken)
		}
		return nil
	}})
	all := append(specs(8), spec(2), Spec{Name: "senseless"})
	cubins, err := c.LoadAll(testContext(t), all)
	for i, s := range all {
		failed := i == 3 || i == 5 || i == 9
		if (cubins[i].Size() == 0) != failed || !failed && cubins[i].Key != s.Key() {
			t.Errorf("%d, %s: %+v", i, s.Name, cubins[i])
		}
	}
	want := "kernel kernel3 for sm_90a: kernel3: broken\nkernel kernel5 for sm_90a: kernel5: broken\nkernel " +
		"senseless for : no source"
	if err == nil || err.Error() != want || !errors.Is(err, broken) {
		t.Errorf("the error is %q, want %q", err, want)
	}
	if cubins, err = c.LoadAll(testContext(t), nil); err != nil || len(cubins) != 0 {
		t.Errorf("of none: %v, %v", cubins, err)
	}
}

// TestParallel: as many compile at once as may, and no more.
func TestParallel(t *testing.T) {
	const kernels, parallel = 12, 3
	dir := newDir(t)
	synctest.Test(t, func(t *testing.T) {
		f, begun, goOn := blocking()
		c := New(Options{Compiler: f.open, Dir: dir, ReadOnly: []string{}, Parallel: parallel})
		done := make(chan error, 1)
		go func() {
			_, err := c.LoadAll(t.Context(), specs(kernels))
			done <- err
		}()
		for left := kernels; left > 0; left -= parallel {
			synctest.Wait() // until nobody can go on
			if len(begun) != parallel {
				t.Errorf("%d compile at once, want %d", len(begun), parallel)
			}
			for range len(begun) {
				<-begun
				goOn <- nil
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestConcurrentLoads: many goroutines and several caches over one directory want overlapping sets.
func TestConcurrentLoads(t *testing.T) {
	const kernels, loaders = 12, 8
	dir := newDir(t)
	fakes := [2]fake{}
	var caches [2]*Cache
	for i := range caches {
		caches[i], _ = cacheIn(dir, &fakes[i])
	}
	all := specs(kernels)
	var wait sync.WaitGroup
	for i := range loaders {
		wait.Go(func() {
			mine := append(append([]Spec(nil), all[i:]...), all[:i]...)
			cubins, err := caches[i%2].LoadAll(testContext(t), mine)
			if err != nil {
				t.Error(err)
			}
			for k, cubin := range cubins {
				if cubin.Key != mine[k].Key() {
					t.Errorf("loader %d: %s is %s", i, mine[k].Name, cubin.Name)
				}
			}
		})
	}
	wait.Wait()
	for _, s := range all {
		if n := fakes[0].times(s.Name) + fakes[1].times(s.Name); n != 1 {
			t.Errorf("%s: compiled %d times", s.Name, n)
		}
	}
	if err := Verify(dir); err != nil {
		t.Error(err)
	}
}

// TestNoCompiler: the text says the ways out, and the reason is kept. The search for a compiler is
// made once.
func TestNoCompiler(t *testing.T) {
	reason, opened := errors.New("nowhere"), 0
	c := New(Options{
		Compiler: func() (Compiler, error) { opened++; return nil, reason }, Dir: newDir(t),
		ReadOnly: []string{},
	})
	_, err := c.LoadAll(testContext(t), specs(3))
	if !errors.Is(err, ErrNoCompiler) || !errors.Is(err, reason) || opened != 1 {
		t.Errorf("have %v, opened %d times", err, opened)
	}
	text := err.Error()
	for _, want := range []string{"WEFT_NVRTC", "nvidia-cuda-nvrtc", "WEFT_CACHE", "weft compile", "nowhere"} {
		if strings.Count(text, want) != 1 && want != "WEFT_CACHE" {
			t.Errorf("%q is not told, or more than once, in %q", want, text)
		}
	}
	if !strings.HasPrefix(text, "kernel kernel0 for sm_90a, kernel1 for sm_90a, kernel2 for sm_90a: ") ||
		strings.Contains(text, "\n") {
		t.Errorf("the error of three kernels is %q", text)
	}
}

// TestNoCompilerNamed: a reason that names the ways to NVRTC is told as it is. Its type says so, not its words.
func TestNoCompilerNamed(t *testing.T) {
	for _, c := range []struct {
		reason error
		named  bool
	}{
		{&nvrtc.SearchError{Err: errors.New("name it in WEFT_NVRTC")}, true},
		{errors.New("a file of /home/WEFT_NVRTC"), false},
	} {
		err := noCompiler(fmt.Errorf("open: %w", c.reason))
		if !errors.Is(err, ErrNoCompiler) || !errors.Is(err, c.reason) ||
			strings.Contains(err.Error(), "nvidia-cuda-nvrtc") == c.named || !strings.Contains(err.Error(), "WEFT_CACHE") {
			t.Errorf("%v", err)
		}
	}
}

// long is an error with a log.
type long struct{}

func (long) Error() string { return "short" }

func (long) Format(f fmt.State, verb rune) {
	if f.Flag('+') {
		fmt.Fprint(f, "the whole log")
	} else {
		fmt.Fprint(f, "short")
	}
}

func TestErrorsInFull(t *testing.T) {
	one := &Error{Name: "a", Arch: "sm_80", Err: long{}}
	for format, want := range map[string]string{
		"%v":  "kernel a for sm_80: short",
		"%s":  "kernel a for sm_80: short",
		"%q":  `"kernel a for sm_80: short"`,
		"%+v": "kernel a for sm_80: the whole log",
	} {
		if got := fmt.Sprintf(format, one); got != want {
			t.Errorf("%s: %q, want %q", format, got, want)
		}
	}
	two := joined([]*Error{
		nil, one,
		{Name: "b", Arch: "sm_80", Err: errors.New("other")},
		{Name: "c", Arch: "sm_80", Err: long{}},
	})
	if got, want := fmt.Sprintf("%+v",
		two), "kernel a for sm_80, c for sm_80: the whole log\nkernel b for sm_80: other"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var first *Error
	if !errors.As(two, &first) || first != one {
		t.Errorf("the first error is %v", first)
	}
	if joined([]*Error{nil}) != nil {
		t.Error("no failure is an error")
	}
}

// TestDirectories: what the caller says goes before WEFT_CACHE_DIR, and that before the user's
// cache; likewise WEFT_CACHE.
func TestDirectories(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"HOME", "XDG_CACHE_HOME", "LocalAppData"} {
		t.Setenv(name, home)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEFT_CACHE", "")
	t.Setenv("WEFT_CACHE_DIR", "")
	f := &fake{}
	c := New(Options{Compiler: f.open})
	if want := filepath.Join(user, "weft", "kernels"); c.Dir() != want || len(c.readOnly) != 0 {
		t.Errorf("the user's is %s, want %s, beside %q", c.Dir(), want, c.readOnly)
	}
	mustLoad(t, c, spec(1))
	if len(files(t, c.Dir())) == 0 {
		t.Error("nothing is in the user's cache")
	}
	t.Setenv("WEFT_CACHE_DIR", filepath.Join(home, "named"))
	t.Setenv("WEFT_CACHE", strings.Join([]string{"", "one", "two"}, string(filepath.ListSeparator)))
	if c = New(Options{}); c.Dir() != filepath.Join(home, "named") || fmt.Sprint(c.readOnly) != "[one two]" {
		t.Errorf("WEFT_CACHE_DIR: %s, WEFT_CACHE: %q", c.Dir(), c.readOnly)
	}
	if c = New(Options{Dir: "mine", ReadOnly: []string{}}); c.Dir() != "mine" || len(c.readOnly) != 0 {
		t.Errorf("the caller's: %s, %q", c.Dir(), c.readOnly)
	}
}

// TestNoHome: kernels are compiled into memory, and there is one warning.
func TestNoHome(t *testing.T) {
	for _, name := range []string{"HOME", "XDG_CACHE_HOME", "LocalAppData", "WEFT_CACHE_DIR"} {
		t.Setenv(name, "")
	}
	f, log := &fake{}, newJournal()
	c := New(Options{Compiler: f.open, ReadOnly: []string{}, Logger: log.logger()})
	for range 2 {
		mustLoad(t, c, spec(1))
		mustLoad(t, c, spec(2))
	}
	if f.times("kernel1") != 1 || f.times("kernel2") != 1 {
		t.Errorf("compiled %v", f.compiled)
	}
	log.one(t, "kernel cache not used")
}

// TestReadOnlyDirectories are looked at in order, before the cache's own, and never written.
func TestReadOnlyDirectories(t *testing.T) {
	first, second, own := newDir(t), newDir(t), newDir(t)
	filler, _ := cacheIn(newDir(t), &fake{})
	for dir, s := range map[string][]Spec{first: {spec(1)}, second: {spec(1), spec(2)}} {
		if err := filler.Fill(testContext(t), dir, s); err != nil {
			t.Fatal(err)
		}
	}
	before := fmt.Sprint(files(t, first), files(t, second))
	missing := filepath.Join(t.TempDir(), "missing")
	f, log := &fake{}, newJournal()
	c := New(Options{Compiler: f.open, Dir: own, ReadOnly: []string{missing, first, second}, Logger: log.logger()})
	for i := range 4 {
		mustLoad(t, c, spec(i))
	}
	if f.times("kernel1") != 0 || f.times("kernel2") != 0 || f.times("kernel0") != 1 || f.times("kernel3") != 1 {
		t.Errorf("compiled: %v", f.compiled)
	}
	log.one(t, "kernel cache not used", missing)
	if after := fmt.Sprint(files(t, first), files(t, second)); after != before {
		t.Errorf("they have %s, and had %s", after, before)
	}
	for _, i := range []int{1, 2} {
		if _, err := os.Stat(entryPath(own, spec(i))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("kernel%d is in the cache's own directory too: %v", i, err)
		}
	}
	// The first that has it is taken: without its entry the second serves.
	if err := os.Remove(entryPath(first, spec(1))); err != nil {
		t.Fatal(err)
	}
	c = New(Options{Compiler: f.open, Dir: own, ReadOnly: []string{first, second}})
	if mustLoad(t, c, spec(1)); f.times("kernel1") != 0 {
		t.Error("the second directory is not looked at")
	}
}

// TestRenameFails: the result is there, one warning, and nothing else is left.
func TestRenameFails(t *testing.T) {
	dir, f := newDir(t), &fake{}
	c, log := cacheIn(dir, f)
	full := errors.New("disk full")
	c.rename = func(*os.Root, string, string) error { return full }
	mustLoad(t, c, spec(1))
	mustLoad(t, c, spec(2))
	log.one(t, "kernel cache cannot be written", dir, "disk full")
	for _, name := range files(t, dir) {
		if !strings.HasSuffix(name, lockSuffix) {
			t.Errorf("%s is left", name)
		}
	}
}

// TestFileModes: for nobody else's eyes.
func TestFileModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are Unix's")
	}
	dir := filepath.Join(newDir(t), "below")
	c, _ := cacheIn(dir, &fake{})
	mustLoad(t, c, spec(1))
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	names := files(t, dir)
	if len(names) != 2 {
		t.Errorf("there are %q, want an entry and a lock", names)
	}
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}
