package weft_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/trace"
)

// TestTrace: each rank has a file, which communicators share that are made of the rank's.
func TestTrace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "traces")
	group := join(t, 3, weft.WithTrace(dir))
	ctx := testContext(t)
	must(t, group, func(c *weft.Comm) error {
		part, err := c.Split(ctx, c.Rank()/2, 0)
		if err != nil {
			return err
		}
		for _, of := range []*weft.Comm{c, part} {
			w := of.Operations().Trace()
			id := w.Track(trace.Track{Lane: "x", Clock: trace.ClockHost})
			w.Events(id, []trace.Event{{Time: trace.Now(), Op: trace.NoOp, Peer: -1, Site: trace.Begin}})
		}
		return errors.Join(part.Close(), c.Close())
	})
	files, err := trace.ReadDir(dir)
	if err != nil || len(files) != 3 {
		t.Fatal(len(files), err)
	}
	for r, f := range files {
		if f.Rank != r || f.Size != 3 || f.Comm != files[0].Comm || f.PID != os.Getpid() || f.Cut != "" ||
			f.Version != weft.Version() || len(f.Tracks) != 2 {
			t.Fatalf("%+v", f)
		}
		job, part := f.Tracks[0], f.Tracks[1]
		if job.Comm != f.Comm || job.Rank != r || job.Size != 3 || part.Comm == f.Comm || part.Size != 2-r/2 ||
			len(job.Events) != 1 || len(part.Events) != 1 {
			t.Fatalf("%+v", f.Tracks)
		}
	}
	if files[0].Tracks[1].Comm != files[1].Tracks[1].Comm || files[1].Tracks[1].Comm == files[2].Tracks[1].Comm {
		t.Fatal("names of the communicators")
	}
}

// TestTraceRefused: a directory that cannot be made is an error of all ranks.
func TestTraceRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := weft.Join(testContext(t), weft.WithTrace(file))
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Fatal(err)
	}
}

// TestTraceOff: without the option there is nothing.
func TestTraceOff(t *testing.T) {
	for _, c := range join(t, 2, weft.WithTrace("")) {
		if c.Operations().Trace() != nil {
			t.Fatal("a trace")
		}
	}
}
