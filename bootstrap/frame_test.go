package bootstrap

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var sampleMessages = []message{
	hello{role: rolePair, rank: 1, peer: 2, size: 3, job: jobID{4}, nonce: nonce{5}},
	challenge{rank: 1, size: 2, job: jobID{3}, nonce: nonce{4}},
	proof{mac: mac{1, 2, 3}},
	verdict{reason: reasonSize, rank: 3, mac: mac{9}, text: "why"},
	data{bytes: []byte("payload")},
	data{bytes: []byte{}},
	share{seq: 7, op: opBarrier, bytes: []byte("part")},
	gathered{seq: 7, first: 2, blocks: [][]byte{[]byte("a"), {}, []byte("ccc")}},
	fault{rank: 3, reason: reasonDied, entered: 8, text: "gone"},
	bye{},
	inquiry{seq: 1},
	missing{seq: 1, ranks: []uint32{2, 3}, text: "late"},
}

var cmpMessages = cmp.AllowUnexported(hello{}, challenge{}, proof{}, verdict{}, data{}, share{}, gathered{},
	fault{}, bye{}, inquiry{}, missing{})

func TestFrames(t *testing.T) {
	var stream []byte
	for _, m := range sampleMessages {
		stream = appendFrame(stream, m)
	}
	r := bytes.NewReader(stream)
	for _, want := range sampleMessages {
		got, err := readMessage(r, maxPayload)
		if err != nil {
			t.Fatalf("%T: %v", want, err)
		}
		if d := cmp.Diff(want, got, cmpMessages); d != "" {
			t.Error(d)
		}
	}
	if _, err := readMessage(r, maxPayload); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	// Every proper beginning of a frame is a cut stream, or a message that says so.
	for _, m := range sampleMessages {
		frame := appendFrame(nil, m)
		for n := 1; n < len(frame); n++ {
			if _, err := readMessage(bytes.NewReader(frame[:n]), maxPayload); err != io.ErrUnexpectedEOF {
				t.Fatalf("%T cut to %d bytes: %v", m, n, err)
			}
		}
		if n := len(frame) - headerSize; n > 0 {
			if _, err := readMessage(bytes.NewReader(frame), n-1); !errors.Is(err, ErrProtocol) {
				t.Errorf("%T over the limit: %v", m, err)
			}
		}
	}
	// A handshake fits what strangers may send.
	for _, m := range []message{hello{}, challenge{}, proof{}, verdict{text: string(make([]byte, 1000))}} {
		if n := len(appendFrame(nil, m)) - headerSize; n > maxHandshake {
			t.Errorf("%T is %d bytes long", m, n)
		}
	}
}

// TestSplit puts a gathered back together from parts that each fit a frame.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{
			0, 1, 1000, MaxMessage/2 - 10, MaxMessage / 2,
			MaxMessage,
		}), 1, 6).Draw(t, "sizes")
		backing := make([]byte, MaxMessage)
		g := gathered{seq: 3}
		for _, n := range sizes {
			g.blocks = append(g.blocks, backing[:n])
		}
		next := 0
		for _, part := range g.split() {
			p := part.(gathered)
			length := len(gathered{}.appendTo(nil))
			for _, b := range p.blocks {
				length += 4 + len(b)
			}
			if length > maxPayload {
				t.Fatal("part too long for a frame")
			}
			if int(p.first) != next || len(p.blocks) == 0 {
				t.Fatalf("part begins at %d with %d blocks, want %d", p.first, len(p.blocks), next)
			}
			for _, b := range p.blocks {
				if len(b) != sizes[next] {
					t.Fatalf("block %d is %d bytes", next, len(b))
				}
				next++
			}
		}
		if next != len(sizes) {
			t.Fatalf("%d blocks of %d", next, len(sizes))
		}
	})
}

// FuzzFrame feeds the parser of everything that arrives. What it accepts, it must write back the
// same.
func FuzzFrame(f *testing.F) {
	for _, m := range sampleMessages {
		f.Add(appendFrame(nil, m))
	}
	f.Add([]byte("WEFT\x01\x08\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 4096
		r := bytes.NewReader(b)
		m, err := readMessage(r, limit)
		if err != nil {
			if !errors.Is(err, ErrProtocol) && err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Fatalf("unexpected kind of error: %v", err)
			}
			return
		}
		frame := appendFrame(nil, m)
		again, err := readMessage(bytes.NewReader(frame), limit)
		if err != nil {
			t.Fatalf("%#v does not survive: %v", m, err)
		}
		if d := cmp.Diff(m, again, cmpMessages); d != "" {
			t.Fatal(d)
		}
	})
}
