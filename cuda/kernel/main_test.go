package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if playPart() {
		return
	}
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every wait; none comes near it unless something hangs.
const testTimeout = 20 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// A fake compiles nothing: its image says what it was made of. It may be used by several processes,
// which note what they compile in a file.
type fake struct {
	notes string // a file, or empty
	size  int    // at least, of images
	begin func(ctx context.Context, s Spec) error

	mu       sync.Mutex
	compiled map[string]int // by name
}

func (f *fake) Compile(ctx context.Context, s Spec) (Code, error) {
	f.mu.Lock()
	if f.compiled == nil {
		f.compiled = map[string]int{}
	}
	f.compiled[s.Name]++
	f.mu.Unlock()
	if f.notes != "" {
		if err := note(f.notes, s.Key().String()); err != nil {
			return Code{}, err
		}
	}
	if f.begin != nil {
		if err := f.begin(ctx, s); err != nil {
			return Code{}, err
		}
	}
	var symbols []string
	for _, name := range s.Kernels {
		symbols = append(symbols, "symbol of "+name)
	}
	return Code{Image: f.image(s), Symbols: symbols, Log: "remarks on " + s.Name}, nil
}

func (f *fake) image(s Spec) []byte {
	text := []byte("code of " + s.Key().String())
	return append(text, bytes.Repeat([]byte{'.'}, max(0, f.size-len(text)))...)
}

func (f *fake) Version() string { return "fake 1" }

func (f *fake) open() (Compiler, error) { return f, nil }

func (f *fake) times(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.compiled[name]
}

// note appends a line in one write, which no other process can come between.
func note(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// noted counts lines.
func noted(t *testing.T, file string) map[string]int {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, line := range strings.Fields(string(raw)) {
		times[line]++
	}
	return times
}

func spec(i int) Spec {
	return Spec{
		Name:    fmt.Sprintf("kernel%d", i),
		Source:  fmt.Sprintf(`extern "C" __global__ void kernel%d() {}`, i),
		Headers: map[string]string{"a.h": "// a", "b.h": "// b"},
		Defines: map[string]string{"HIDDEN": "7168", "TOPK": "8"},
		Options: []string{"-lineinfo"},
		Kernels: []string{fmt.Sprintf("layer::kernel%d", i), "scale<unsigned int>"},
		Arch:    "sm_90a",
	}
}

func specs(n int) []Spec {
	all := make([]Spec, n)
	for i := range all {
		all[i] = spec(i)
	}
	return all
}

// A journal is a logger that remembers.
type journal struct {
	mu      sync.Mutex
	lines   []string
	changed chan struct{}
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

func (j *journal) logger() *slog.Logger { return slog.New(j) }

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j *journal) WithGroup(string) slog.Handler            { return j }

func (j *journal) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
	close(j.changed)
	j.changed = make(chan struct{})
	return nil
}

// warnings are the lines at level Warn.
func (j *journal) warnings() (lines []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.lines {
		if strings.HasPrefix(line, "WARN") {
			lines = append(lines, line)
		}
	}
	return lines
}

// await waits for a line with a text.
func (j *journal) await(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(testTimeout)
	for {
		j.mu.Lock()
		all, changed := strings.Join(j.lines, "\n"), j.changed
		j.mu.Unlock()
		if strings.Contains(all, text) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no line with %q in the log:\n%s", text, all)
		}
	}
}

// one fails the test unless there is exactly one warning, which has all the texts.
func (j *journal) one(t *testing.T, texts ...string) {
	t.Helper()
	warnings := j.warnings()
	if len(warnings) != 1 {
		t.Fatalf("%d warnings, want one: %q", len(warnings), warnings)
	}
	for _, text := range texts {
		if !strings.Contains(warnings[0], text) {
			t.Errorf("the warning %q does not say %q", warnings[0], text)
		}
	}
}

func (j *journal) none(t *testing.T) {
	t.Helper()
	if warnings := j.warnings(); len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
}

// cacheIn is a cache of a directory and of no others.
func cacheIn(dir string, f *fake) (*Cache, *journal) {
	j := newJournal()
	return New(Options{Compiler: f.open, Dir: dir, ReadOnly: []string{}, Logger: j.logger()}), j
}

// newDir is a path in a fresh folder, at which nothing is yet.
func newDir(t testing.TB) string { return filepath.Join(t.TempDir(), "kernels") }

func mustLoad(t testing.TB, c *Cache, s Spec) Cubin {
	t.Helper()
	cubin, err := c.Load(testContext(t), s)
	if err != nil {
		t.Fatal(err)
	}
	if want := (&fake{}).image(s); !bytes.HasPrefix(cubin.Image(), want) || cubin.Key != s.Key() {
		t.Fatalf("%s: the image is %.40q, want %q", s.Name, cubin.Image(), want)
	}
	return cubin
}

// files are the names in a folder.
func files(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func entryPath(dir string, s Spec) string { return filepath.Join(dir, s.Key().String()+entrySuffix) }
