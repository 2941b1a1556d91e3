package terminal

import (
	"bytes"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestColor(t *testing.T) {
	env := func(kv ...string) func(string) string {
		return func(k string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == k {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	for name, tc := range map[string]struct {
		terminal bool
		env      func(string) string
		want     bool
	}{
		"terminal":      {true, env("TERM", "xterm"), true},
		"pipe":          {false, env("TERM", "xterm"), false},
		"NO_COLOR":      {true, env("TERM", "xterm", "NO_COLOR", "1"), false},
		"dumb terminal": {true, env("TERM", "dumb"), false},
	} {
		if got := color(tc.terminal, tc.env); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// buffer may be written by the bars' own goroutine.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestPlainLines(t *testing.T) {
	var out buffer
	p := newProgress(&out, false)
	task := p.Start("dispatch", 3)
	for range 3 {
		task.Advance(1)
	}
	task.Done("p50 4.1 us")
	task.Done("")
	p.Close()
	if !regexp.MustCompile(`^dispatch: 3 of 3, \S+: p50 4.1 us\n$`).MatchString(out.String()) {
		t.Errorf("%q", out.String())
	}
}

func TestBarsEnd(t *testing.T) {
	for _, steps := range []int{0, 5} { // cut short, and complete
		var out buffer
		p := newProgress(&out, true)
		task := p.Start("combine", 5)
		var wg sync.WaitGroup
		for range steps {
			wg.Go(func() { task.Advance(1) })
		}
		wg.Wait()
		task.Done("")
		p.Close() // would hang on an unfinished bar
		if steps == 5 && !strings.Contains(out.String(), "5/5") {
			t.Errorf("%q", out.String())
		}
	}
}
