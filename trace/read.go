package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is what a rank has written.
type File struct {
	Header
	Path    string
	Tracks  []FileTrack
	Anchors []Anchor
	// Cut says why the file ends before its end: its rank was killed as it wrote, say. Empty: it does not.
	Cut string
	// Ended: the rank has closed the file. Otherwise its last events may not be in it: the rank was killed or ended
	// without that, it still runs, or nothing more could be written.
	Ended bool
}

// FileTrack is a track with its events, in the order in which the Writer got them.
type FileTrack struct {
	Track
	Comm       string // of the track's communicator
	Rank, Size int    // in it
	Events     []Event
	Lost       uint64 // events that are not there: they were not written in time
	// Overwritten is how many operations are not there: see Writer.Overwritten.
	Overwritten uint64
}

// Anchor is a reading of a clock beside the time of day: see [Writer.Anchor].
type Anchor struct {
	Clock  string
	Own    uint64
	Unix   int64
	Within uint64
}

// Read reads a file, up to its last whole record.
func Read(path string) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	f, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("trace: %s: %w", path, err)
	}
	f.Path = path
	return f, nil
}

// ReadDir reads all files of a directory, and of directories below it: of several hosts, say. Its error says which
// files could not be read; the others are given all the same.
func ReadDir(dir string) ([]*File, error) {
	var files []*File
	var broken []error
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, Extension) {
			return err
		}
		if f, err := Read(path); err == nil {
			files = append(files, f)
		} else {
			broken = append(broken, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 && len(broken) == 0 {
		return nil, fmt.Errorf("trace: no *%s in %s", Extension, dir)
	}
	slices.SortStableFunc(files, func(a, b *File) int { return a.Rank - b.Rank })
	return files, errors.Join(broken...)
}

// mostRanks is more than any job has.
const mostRanks = 1 << 15

// Parse reads the bytes of a file. Its events take at most 40 times as much memory as the bytes that hold them.
func Parse(b []byte) (*File, error) {
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return nil, errors.New("it is no trace of Weft, or of another version of it")
	}
	f := new(File)
	b = b[len(magic):]
	record, b, err := nextRecord(b)
	if err != nil || record == nil || record[0] != kindHeader {
		return nil, errors.New("it has no header")
	}
	if err := json.Unmarshal(record[1:], &f.Header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if f.Rank < 0 || f.Rank >= f.Size || f.Size > mostRanks {
		return nil, fmt.Errorf("header: rank %d of %d", f.Rank, f.Size)
	}
	for {
		var record []byte
		if record, b, err = nextRecord(b); err == nil && record != nil {
			err = f.take(record)
		}
		switch {
		case err != nil:
			f.Cut = err.Error()
			return f, nil
		case record == nil:
			return f, nil
		}
	}
}

// take takes a record.
func (f *File) take(record []byte) error {
	in := fields{b: record[1:]}
	track := func() *FileTrack {
		if id := in.number(); id < uint64(len(f.Tracks)) {
			return &f.Tracks[id]
		}
		in.failed = true
		return new(FileTrack)
	}
	switch record[0] {
	case kindTrack:
		var r trackRecord
		if json.Unmarshal(in.b, &r) != nil || int(r.ID) != len(f.Tracks) || r.Rank < 0 || r.Rank >= r.Size ||
			r.Size > mostRanks {
			return errRecord
		}
		f.Tracks = append(f.Tracks, FileTrack{Track: r.Track, Comm: r.Comm, Rank: r.Rank, Size: r.Size})
	case kindOps:
		t := track()
		t.Ops = append(t.Ops, string(in.b))
	case kindEnd:
		f.Ended = true
	case kindLost:
		track().Lost += in.number()
	case kindOverwritten:
		track().Overwritten += in.number()
	case kindAnchor:
		a := Anchor{Own: in.number(), Unix: unzigzag(in.number()), Within: in.number()}
		a.Clock = string(in.b)
		if !in.failed {
			f.Anchors = append(f.Anchors, a)
		}
	case kindEvents:
		t, n := track(), in.number()
		if n > uint64(len(in.b)) { // an event has three bytes at least
			return errRecord
		}
		before := len(t.Events)
		t.Events = slices.Grow(t.Events, int(n))
		var e Event
		for range n {
			in.event(&e)
			if e.Site == 0 || e.Site >= sites || int(e.Peer) < -1 || int(e.Peer) >= t.Size ||
				e.Op != NoOp && e.Op >= uint32(len(t.Ops)) {
				in.failed = true
			}
			if in.failed {
				t.Events = t.Events[:before]
				return errRecord
			}
			t.Events = append(t.Events, e)
		}
	}
	if in.failed {
		return errRecord
	}
	return nil // a record of a kind that this version does not know is passed over
}
