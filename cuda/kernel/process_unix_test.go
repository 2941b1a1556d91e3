//go:build unix

package kernel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const partVariable = "WEFT_KERNEL_TEST_PART"

// An order tells a process what to load, and where to stop.
type order struct {
	Dir           string
	ReadOnly      []string
	Notes         string // where the compiler notes what it compiles
	Kernels       int
	Size          int           // of images
	Takes         time.Duration // a compilation
	Stop          string        // "compiling" or "renaming": it says so there, and goes on when it is told to
	User          int           // to become, unless zero
	Mount         string        // options of a tmpfs to mount at Mounted, unless empty
	Mounted       string
	ReadOnlyMount bool
}

// A report is what a process says.
type report struct {
	Event    string // "ready", "compiling", "renaming", "loaded"
	Error    string
	Images   []string // what the images begin with
	Compiled int
	Warnings []string
	Files    []string // in Dir
}

// playPart makes this process one of a test's, if a test has started it.
func playPart() bool {
	if os.Getenv(partVariable) == "" {
		return false
	}
	if err := play(bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func play(in *bufio.Reader, out *json.Encoder) error {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	if err := o.apply(); err != nil {
		return err
	}
	meet := func(event string) error {
		if err := out.Encode(report{Event: event}); err != nil {
			return err
		}
		_, err := in.ReadBytes('\n')
		return err
	}
	f := &fake{notes: o.Notes, size: o.Size, begin: func(ctx context.Context, _ Spec) error {
		if o.Stop == "compiling" {
			return meet(o.Stop)
		}
		select { // so that the others find it compiling
		case <-time.After(o.Takes):
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	}}
	log := newJournal()
	c := New(Options{Compiler: f.open, Dir: o.Dir, ReadOnly: append([]string{}, o.ReadOnly...), Logger: log.logger()})
	if o.Stop == "renaming" {
		c.rename = func(d *os.Root, from, to string) error {
			return errors.Join(meet(o.Stop), d.Rename(from, to))
		}
	}
	if err := meet("ready"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	cubins, err := c.LoadAll(ctx, specs(o.Kernels))
	r := report{Event: "loaded", Warnings: log.warnings()}
	if err != nil {
		r.Error = err.Error()
	}
	for i, cubin := range cubins {
		image := string(cubin.Image())
		r.Images = append(r.Images, image[:min(len(image), len(f.image(spec(i))))])
		r.Compiled += f.times(spec(i).Name)
	}
	if entries, err := os.ReadDir(o.Dir); err == nil {
		for _, e := range entries {
			r.Files = append(r.Files, e.Name())
		}
	}
	if err := out.Encode(r); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in) // until the test hangs up
	return err
}

// apply makes the process what the order wants.
func (o *order) apply() error {
	if err := o.mount(); err != nil {
		return err
	}
	if o.User == 0 {
		return nil
	}
	return errors.Join(syscall.Setgroups(nil), syscall.Setgid(o.User), syscall.Setuid(o.User))
}

// A process plays a part for a test.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports chan report
}

// start starts a process, and waits until it is ready.
func start(t *testing.T, o order, attributes *syscall.SysProcAttr) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), reports: make(chan report, 16)}
	p.cmd.Env = append(os.Environ(), partVariable+"=1")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = attributes
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		if attributes != nil && errors.Is(err, syscall.EPERM) {
			t.Skipf("no namespaces for this user: %v", err)
		}
		t.Fatal(err)
	}
	p.in = in
	go func() {
		defer close(p.reports)
		for d := json.NewDecoder(out); ; {
			var r report
			if d.Decode(&r) != nil {
				return
			}
			p.reports <- r
		}
	}()
	t.Cleanup(func() {
		_ = p.in.Close()
		p.kill()
	})
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p.tell(t, string(raw))
	p.expect(t, "ready")
	return p
}

func (p *process) tell(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// goOn lets a process go on from where it stopped.
func (p *process) goOn(t *testing.T) { t.Helper(); p.tell(t, "") }

func (p *process) expect(t *testing.T, event string) report {
	t.Helper()
	select {
	case r, ok := <-p.reports:
		if !ok || r.Event != event {
			t.Fatalf("a process reports %+v (it lives: %t), want %q", r, ok, event)
		}
		return r
	case <-time.After(testTimeout):
		t.Fatalf("no report, want %q", event)
	}
	return report{}
}

// loaded expects that it has all kernels that it was to load.
func (p *process) loaded(t *testing.T, kernels int) report {
	t.Helper()
	r := p.expect(t, "loaded")
	if r.Error != "" || len(r.Images) != kernels {
		t.Fatalf("a process has %d kernels of %d: %s", len(r.Images), kernels, r.Error)
	}
	for i, image := range r.Images {
		if want := string((&fake{}).image(spec(i))); !strings.HasPrefix(image, want) {
			t.Errorf("kernel%d is %q, want %q", i, image, want)
		}
	}
	return r
}

// kill ends a process as kill -9 does, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	for range p.reports {
	}
	_ = p.cmd.Wait()
}

// newNotes is a file for compilers' notes.
func newNotes(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEightProcesses start on a cold cache at the same time: each kernel is compiled by exactly one
// of them, and all have all.
func TestEightProcesses(t *testing.T) {
	const kernels = 6
	o := order{Dir: newDir(t), Notes: newNotes(t), Kernels: kernels, Size: 100 << 10, Takes: 5 * time.Millisecond}
	var all []*process
	for range 8 {
		all = append(all, start(t, o, nil))
	}
	for _, p := range all {
		p.goOn(t)
	}
	compiled := 0
	for _, p := range all {
		r := p.loaded(t, kernels)
		compiled += r.Compiled
		if len(r.Warnings) > 0 {
			t.Errorf("warnings: %q", r.Warnings)
		}
	}
	times := noted(t, o.Notes)
	for _, s := range specs(kernels) {
		if times[s.Key().String()] != 1 {
			t.Errorf("%s was compiled %d times", s.Name, times[s.Key().String()])
		}
	}
	if compiled != kernels {
		t.Errorf("%d compilations of %d kernels", compiled, kernels)
	}
	if names := files(t, o.Dir); len(names) != 2*kernels {
		t.Errorf("%d files, want an entry and a lock for each of %d: %q", len(names), kernels, names)
	}
	if err := Verify(o.Dir); err != nil {
		t.Error(err)
	}
}

// TestKilledWhileCompiling: who waits for the dead process takes over at once.
func TestKilledWhileCompiling(t *testing.T) {
	o := order{Dir: newDir(t), Notes: newNotes(t), Kernels: 1, Stop: "compiling"}
	p := start(t, o, nil)
	p.goOn(t)
	p.expect(t, "compiling")

	f := &fake{notes: o.Notes}
	c, log := cacheIn(o.Dir, f)
	done := make(chan error, 1)
	go func() {
		_, err := c.Load(testContext(t), spec(0))
		done <- err
	}()
	log.await(t, "another process compiles the kernel")
	if f.times("kernel0") != 0 {
		t.Error("compiled beside the one that holds the lock")
	}
	p.kill()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	after(t, o, f, log)
}

// TestKilledWhileWriting: between write and rename. What was written is never read, and goes when
// the next one writes.
func TestKilledWhileWriting(t *testing.T) {
	o := order{Dir: newDir(t), Notes: newNotes(t), Kernels: 1, Size: 100 << 10, Stop: "renaming"}
	p := start(t, o, nil)
	p.goOn(t)
	p.expect(t, "renaming")
	drafts, err := filepath.Glob(filepath.Join(o.Dir, "*"+draftSuffix))
	if err != nil || len(drafts) != 1 {
		t.Fatalf("drafts: %q, %v", drafts, err)
	}
	if info, err := os.Stat(drafts[0]); err != nil || info.Size() < 100<<10 {
		t.Fatalf("the draft: %v, %v", info, err)
	}
	p.kill()
	if _, err := os.Stat(entryPath(o.Dir, spec(0))); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("an entry, though the writer died before: %v", err)
	}

	f := &fake{notes: o.Notes}
	c, log := cacheIn(o.Dir, f)
	mustLoad(t, c, spec(0))
	after(t, o, f, log)
}

// after checks a directory whose first writer died and whose second did not.
func after(t *testing.T, o order, f *fake, log *journal) {
	t.Helper()
	log.none(t)
	if n := noted(t, o.Notes)[spec(0).Key().String()]; n != 2 || f.times("kernel0") != 1 {
		t.Errorf("compiled %d times, %d of them after the kill; want 2 and 1", n, f.times("kernel0"))
	}
	key := spec(0).Key().String()
	if names := files(t, o.Dir); len(names) != 2 || names[0] != key+entrySuffix || names[1] != key+lockSuffix {
		t.Errorf("the directory has %q, want an entry and its lock", names)
	}
	if err := Verify(o.Dir); err != nil {
		t.Error(err)
	}
}

// TestWaitsForAnotherProcess: and then reads what that has written.
func TestWaitsForAnotherProcess(t *testing.T) {
	o := order{Dir: newDir(t), Notes: newNotes(t), Kernels: 1, Stop: "compiling"}
	p := start(t, o, nil)
	p.goOn(t)
	p.expect(t, "compiling")
	// Bad entries are told of once, however often it looks.
	bad := newDir(t)
	for _, dir := range []string{bad, o.Dir} {
		if err := errors.Join(os.MkdirAll(dir, 0o700),
			os.WriteFile(entryPath(dir, spec(0)), []byte("bad"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	f, log, looks := &fake{}, newJournal(), make(chan bool, 1000)
	c := New(Options{Compiler: f.open, Dir: o.Dir, ReadOnly: []string{bad}, Logger: log.logger(), Parallel: 1})
	c.flock = func(file *os.File) (bool, error) {
		looks <- true
		return flock(file)
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.Load(testContext(t), spec(0))
		done <- err
	}()
	for range 4 {
		<-looks
	}
	mustLoad(t, c, spec(1)) // other kernels do not wait meanwhile, though only one may be compiled at a time
	p.goOn(t)
	p.loaded(t, 1)
	if err := <-done; err != nil || f.times("kernel0") != 0 {
		t.Errorf("%v, compiled %d times", err, f.times("kernel0"))
	}
	if w := log.warnings(); len(w) != 2 || !strings.Contains(w[0], bad) || !strings.Contains(w[1], o.Dir) {
		t.Errorf("warnings: %q", w)
	}
}

// TestStoppedProcess holds a lock and does nothing: a wait ends with its context, or when it has
// lasted long enough.
func TestStoppedProcess(t *testing.T) {
	o := order{Dir: newDir(t), Notes: newNotes(t), Kernels: 1, Stop: "compiling"}
	p := start(t, o, nil)
	p.goOn(t)
	p.expect(t, "compiling")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	f := &fake{}
	c, log := cacheIn(o.Dir, f)
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() {
		_, err := c.Load(ctx, spec(0))
		done <- err
	}()
	log.await(t, "another process compiles the kernel")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || f.times("kernel0") != 0 {
		t.Errorf("%v, compiled %d times", err, f.times("kernel0"))
	}

	c, log = cacheIn(o.Dir, f)
	c.patience = 20 * time.Millisecond
	mustLoad(t, c, spec(0))
	log.one(t, "holds the kernel's lock for too long", spec(0).Key().String()+lockSuffix)
	c, log = cacheIn(o.Dir, f) // what was compiled without the lock is an entry like others
	mustLoad(t, c, spec(0))
	log.none(t)
	if f.times("kernel0") != 1 {
		t.Errorf("compiled %d times", f.times("kernel0"))
	}
	// The one that was stopped wakes up, and does no harm.
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.goOn(t)
	p.loaded(t, 1)
	if err := Verify(o.Dir); err != nil {
		t.Error(err)
	}
}

// TestWrittenBeforeTheLock: between the look for an entry and the lock another process may have
// compiled and gone.
func TestWrittenBeforeTheLock(t *testing.T) {
	dir := newDir(t)
	other, _ := cacheIn(dir, &fake{})
	f := &fake{}
	c, log := cacheIn(dir, f)
	c.flock = func(file *os.File) (bool, error) {
		mustLoad(t, other, spec(1))
		return flock(file)
	}
	mustLoad(t, c, spec(1))
	if log.none(t); f.times("kernel1") != 0 {
		t.Error("compiled a second time")
	}
}

// TestUnlockedInForkedChildren: a child that C code forked has the lock file open too, and does not
// keep the lock.
func TestUnlockedInForkedChildren(t *testing.T) {
	dir := newDir(t)
	c, _ := cacheIn(dir, &fake{})
	var child int
	c.flock = func(file *os.File) (taken bool, err error) {
		if child, err = syscall.Dup(int(file.Fd())); err != nil {
			return false, err
		}
		return flock(file)
	}
	mustLoad(t, c, spec(1))
	defer syscall.Close(child)
	if err := os.Remove(entryPath(dir, spec(1))); err != nil {
		t.Fatal(err)
	}
	c, log := cacheIn(dir, &fake{})
	c.patience = 0
	mustLoad(t, c, spec(1))
	log.none(t) // it has the lock, and did not have to go without
}

// TestNoLocks: as on network file systems that have none. Each compiles for itself, and says so
// once.
func TestNoLocks(t *testing.T) {
	dir := newDir(t)
	blocked, begun, goOn := blocking()
	first, firstLog := cacheIn(dir, blocked)
	f := &fake{}
	second, log := cacheIn(dir, f)
	for _, c := range []*Cache{first, second} {
		c.flock = func(*os.File) (bool, error) { return false, syscall.ENOLCK }
	}
	done := make(chan error, 1)
	go func() {
		_, err := first.Load(testContext(t), spec(1))
		done <- err
	}()
	<-begun
	mustLoad(t, second, spec(1))
	mustLoad(t, second, spec(2))
	goOn <- nil
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, j := range []*journal{firstLog, log} {
		j.one(t, "kernel cache cannot be locked", dir)
	}
	if err := Verify(dir); err != nil || f.times("kernel1") != 1 || f.times("kernel2") != 1 {
		t.Errorf("%v; compiled %v", err, f.compiled)
	}
}

// TestUnwritable: in a directory that this user may only read entries are read, and what is not
// there is compiled into memory.
func TestUnwritable(t *testing.T) {
	// Not the test's own folder: the user whom root becomes must get there.
	base, err := os.MkdirTemp("", "weft-kernel")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(base, "kernels")
	t.Cleanup(func() {
		_ = os.Chmod(dir, 0o700)
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	filler, _ := cacheIn(newDir(t), &fake{})
	if err := filler.Fill(testContext(t), dir, specs(1)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(base, 0o755), os.Chmod(dir, 0o555),
		os.Chmod(entryPath(dir, spec(0)), 0o444)); err != nil {
		t.Fatal(err)
	}
	o := order{Dir: dir, Kernels: 3}
	if os.Geteuid() == 0 {
		o.User = stranger // root may write anywhere
	}
	p := start(t, o, nil)
	p.goOn(t)
	r := p.loaded(t, 3)
	if r.Compiled != 2 {
		t.Errorf("%d compiled, want the two that are not there", r.Compiled)
	}
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "kernel cache cannot be written") {
		t.Errorf("warnings: %q", r.Warnings)
	}
	if names := files(t, dir); len(names) != 1 {
		t.Errorf("the directory has %q", names)
	}
	// A user believes root's entries; the other way round root does not.
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, stranger, stranger); err != nil {
			t.Fatal(err)
		}
		p = start(t, order{Dir: newDir(t), ReadOnly: []string{dir}, Kernels: 1}, nil)
		p.goOn(t)
		if r := p.loaded(t, 1); r.Compiled != 1 || len(r.Warnings) != 1 ||
			!strings.Contains(r.Warnings[0], "belongs to user 65533") {
			t.Errorf("root believes a stranger: %+v", r)
		}
	}
}
