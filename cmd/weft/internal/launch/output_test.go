package launch

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func collect(r io.Reader) []string {
	var lines []string
	readLines(r, func(l string) { lines = append(lines, l) })
	return lines
}

func TestReadLinesSplitsLikeStrings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("ab\n\r "))).Draw(t, "text")
		want := strings.Split(text, "\n")
		if want[len(want)-1] == "" {
			want = want[:len(want)-1]
		}
		got := collect(iotest.OneByteReader(strings.NewReader(text)))
		if d := cmp.Diff(append([]string{}, want...), append([]string{}, got...)); d != "" {
			t.Fatal(d)
		}
	})
}

func TestReadLinesCutsEndlessLine(t *testing.T) {
	var total, longest int
	readLines(strings.NewReader(strings.Repeat("x", 3*maxLine+5)), func(l string) {
		total += len(l)
		longest = max(longest, len(l))
	})
	if total != 3*maxLine+5 || longest > maxLine+64<<10 {
		t.Errorf("%d bytes in pieces of up to %d", total, longest)
	}
}

func TestTextSink(t *testing.T) {
	var out, errs strings.Builder
	s := Text(&out, &errs, TextOptions{Size: 12})
	for _, e := range []Event{
		{Kind: Started, Rank: 3},
		{Kind: Output, Rank: 3, Stream: "stdout", Line: "hello"},
		{Kind: Output, Rank: 11, Stream: "stderr", Line: "oops"},
		{Kind: Failed, Rank: 11, Message: "rank 11 failed first: exit status 1"},
		{Kind: Ended, Rank: -1},
	} {
		if err := s.Put(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "[ 3] hello\n"; got != want {
		t.Errorf("out %q, want %q", got, want)
	}
	if got, want := errs.String(), "[11] oops\nweft: rank 11 failed first: exit status 1\n"; got != want {
		t.Errorf("err %q, want %q", got, want)
	}
}

func TestTextSinkColors(t *testing.T) {
	var out strings.Builder
	s := Text(&out, io.Discard, TextOptions{Size: 2, Color: true})
	_ = s.Put(Event{Kind: Output, Rank: 1, Stream: "stdout", Line: " 10%\r100%\r"})
	_ = s.Flush()
	if got, want := out.String(), "\x1b[33m[1] \x1b[0m100%\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// blocked is a sink whose Put waits for release, then fails.
type blocked struct{ release chan struct{} }

func (b blocked) Put(Event) error { <-b.release; return errors.New("gone") }
func (b blocked) Flush() error    { return nil }

func TestLoopNeverWaitsForOutput(t *testing.T) {
	b := blocked{make(chan struct{})}
	m := newMux(b, 8)
	for range 8 {
		m.say(Event{Kind: Notice}) // would deadlock here
	}
	close(b.release)
	if err := <-m.broken; err == nil || err.Error() != "gone" {
		t.Errorf("broken: %v", err)
	}
	m.close(time.Minute)
	<-m.done
}

func TestEnvironment(t *testing.T) {
	got := environment(
		[]string{"PATH=/bin", "WEFT_RANK=7", "WEFT_ID=x", "A=1", lifelineEnv + "=3"},
		[]string{"A=2", "B=1", "A=3"})
	if d := cmp.Diff([]string{"PATH=/bin", "B=1", "A=3"}, got); d != "" {
		t.Error(d)
	}
}

func TestValidate(t *testing.T) {
	ok := Job{Size: 1, Bind: BindAuto, Env: []string{"A=b=c"}}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	for name, j := range map[string]Job{
		"no ranks":       {Size: 0, Bind: BindAuto},
		"bad bind":       {Size: 1, Bind: "maybe"},
		"no value":       {Size: 1, Bind: BindOff, Env: []string{"A"}},
		"owned variable": {Size: 1, Bind: BindOff, Env: []string{"WEFT_RANK=1"}},
	} {
		if err := j.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
