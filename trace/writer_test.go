package trace

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// written makes a file of one track, and reads it again.
func written(t *testing.T, events []Event) (*File, string) {
	t.Helper()
	w, err := Create(t.TempDir(), Header{Rank: 1, Size: 4, Host: "a", PID: 7, Version: "0"})
	if err != nil {
		t.Fatal(err)
	}
	id := w.Within("c", 0, 3).Track(Track{Lane: "group 1", Clock: ClockHost, Ops: []string{"barrier"}})
	if op := w.Op(id, "broadcast"); op != 1 {
		t.Fatalf("operation %d", op)
	}
	w.Events(id, events)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	f, err := Read(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	return f, w.Path()
}

func anyEvent(t *rapid.T) Event {
	return Event{
		Time: rapid.Uint64().Draw(t, "time"), Epoch: rapid.Uint64().Draw(t, "epoch"),
		Bytes: rapid.Uint64().Draw(t, "bytes"),
		Op:    rapid.SampledFrom([]uint32{0, 1, NoOp}).Draw(t, "op"), Block: rapid.Uint16().Draw(t, "block"),
		Step: rapid.Uint16().Draw(t, "step"), Peer: rapid.Int16Range(-1, 2).Draw(t, "peer"),
		Site: Site(rapid.IntRange(1, int(sites)-1).Draw(t, "site")),
	}
}

// TestFile: what is written is what is read.
func TestFile(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		events := rapid.SliceOf(rapid.Custom(anyEvent)).Draw(r, "events")
		f, _ := written(t, events)
		if f.Ended || f.Rank != 1 || f.Size != 4 || f.Cut != "" || len(f.Tracks) != 1 || len(f.Anchors) == 0 {
			r.Fatalf("%+v", f)
		}
		track := f.Tracks[0]
		if track.Comm != "c" || track.Rank != 0 || track.Size != 3 || track.Lost != 0 {
			r.Fatalf("%+v", track)
		}
		if d := cmp.Diff(events, track.Events, cmpopts.EquateEmpty()); d != "" {
			r.Fatal(d)
		}
	})
}

// TestCut: a file that ends anywhere is read up to its last whole record.
func TestCut(t *testing.T) {
	events := make([]Event, 100)
	for i := range events {
		events[i] = Event{Time: uint64(i), Epoch: uint64(i), Peer: -1, Site: Begin}
	}
	_, path := written(t, events)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for n := range len(whole) + 1 {
		f, err := Parse(whole[:n])
		if err != nil {
			if seen > 0 {
				t.Fatal(n, err)
			}
			continue
		}
		seen++
		whether := 0
		if len(f.Tracks) > 0 {
			whether = len(f.Tracks[0].Events)
		}
		if whether != 0 && whether != 100 {
			t.Fatalf("%d of 100 events of %d bytes", whether, n)
		}
	}
	broken := append([]byte(nil), whole...)
	broken[len(broken)-1] ^= 1
	if f, err := Parse(broken); err != nil || f.Cut == "" {
		t.Fatal(f, err)
	}
}

// TestFiles: each Writer of a rank has a file of its own, and derived ones share it until all are closed.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			w, err := Create(filepath.Join(dir, "deep"), Header{Size: 1})
			if err != nil {
				t.Error(err)
				return
			}
			other := w.Within("other", 0, 1)
			id := w.Track(Track{Lane: "x", Clock: ClockHost})
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			w.Overwritten(id, 3)
			other.Events(id, make([]Event, 0))
			other.Events(id, []Event{{Site: End, Op: NoOp, Peer: -1}})
			if err := other.Close(); err != nil {
				t.Error(err)
			}
			other.Events(id, []Event{{Site: End, Op: NoOp, Peer: -1}}) // which nobody sees
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	files, err := ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Fatal(len(files), err)
	}
	for _, f := range files {
		if tr := f.Tracks[0]; len(tr.Events) != 1 || tr.Overwritten != 3 || f.Cut != "" || !f.Ended {
			t.Fatalf("%+v", f)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "rank-9"+Extension), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if files, err := ReadDir(dir); err == nil || len(files) != 4 {
		t.Fatal(len(files), err)
	}
	if _, err := ReadDir(t.TempDir()); err == nil {
		t.Fatal("an empty directory")
	}
}

// TestDrops: what the disk does not take in time is counted.
func TestDrops(t *testing.T) {
	w, err := Create(t.TempDir(), Header{Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	id := w.Track(Track{Lane: "x", Clock: ClockHost})
	w.sink.writing.Lock() // the disk stands still
	batch := make([]Event, 1000)
	for i := range batch {
		batch[i] = Event{Time: uint64(i) << 40, Site: Begin, Op: NoOp, Peer: -1}
	}
	const times = 3000
	for range times {
		w.Events(id, batch)
	}
	w.sink.writing.Unlock()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := Read(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	tr := f.Tracks[0]
	if tr.Lost == 0 || int(tr.Lost)+len(tr.Events) != times*len(batch) {
		t.Fatal(tr.Lost, len(tr.Events))
	}
}

func FuzzParse(f *testing.F) {
	w, err := Create(f.TempDir(), Header{Rank: 0, Size: 2})
	if err != nil {
		f.Fatal(err)
	}
	id := w.Track(Track{Lane: "group 1", Clock: ClockHost, Ops: []string{"barrier"}})
	w.Events(id, []Event{
		{Time: 1 << 50, Epoch: 3, Site: Begin, Peer: -1},
		{Time: 1<<50 + 9, Epoch: 3, Site: Arrived, Peer: 1, Bytes: 8, Step: 2},
	})
	w.Overwritten(id, 2)
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(w.Path())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole[len(magic):])
	f.Fuzz(func(t *testing.T, body []byte) {
		parsed, err := Parse(append([]byte(magic), body...))
		if err != nil {
			return
		}
		if _, err := Align([]*File{parsed}); err != nil {
			return
		}
	})
}

// FuzzRecord: records that pass the checksum are looked at as closely.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{kindEvents, 0, 1, 0, byte(Begin), 2})
	f.Add([]byte{kindAnchor, 1, 2, 3, 'h', 'o', 's', 't'})
	f.Add([]byte{kindTrack, '{', '}'})
	f.Fuzz(func(_ *testing.T, record []byte) {
		if len(record) == 0 {
			return
		}
		file := &File{Header: Header{Size: 2}, Tracks: []FileTrack{{Size: 2}}}
		if file.take(record) == nil {
			_, _ = Align([]*File{file})
		}
	})
}

func BenchmarkEvents(b *testing.B) {
	w, err := Create(b.TempDir(), Header{Size: 1})
	if err != nil {
		b.Fatal(err)
	}
	id := w.Track(Track{Lane: "x", Clock: ClockHost})
	batch := make([]Event, 4)
	for i := range batch {
		batch[i] = Event{Site: Arrived, Op: NoOp, Peer: int16(i)}
	}
	n := uint64(0)
	for b.Loop() {
		for i := range batch {
			batch[i].Time, batch[i].Epoch = Now(), n
		}
		n++
		w.Events(id, batch)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}
