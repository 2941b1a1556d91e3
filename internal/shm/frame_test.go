package shm

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := frame{
			kind: rapid.SampledFrom([]frameKind{
				kindHello, kindWelcome, kindMessage, kindRegion, kindDescriptor,
				kindGoodbye,
			}).Draw(t, "kind"),
			id: rapid.Uint64().Draw(t, "id"),
		}
		least, most, _ := f.kind.payloadLimits()
		f.payload = rapid.SliceOfN(rapid.Byte(), least, most).Draw(t, "payload")
		b := f.append(nil)
		got, err := decodeFrame(b)
		if err != nil || got.kind != f.kind || got.id != f.id || !bytes.Equal(got.payload, f.payload) {
			t.Fatalf("got %v, %v, want %v", got, err, f)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, err := decodeFrame(b[:cut]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%d of %d bytes: %v", cut, len(b), err)
		}
		// marks, version, kind, length: but not to another kind of the same length
		flip := rapid.IntRange(0, 7).Draw(t, "flip")
		b[flip] ^= 0x80
		if greets := f.kind == kindHello || f.kind == kindWelcome; flip == 2 && greets {
			if got, err := decodeFrame(b); err != nil || got.version != b[2] {
				t.Fatalf("greeting of version %d: %d, %v", b[2], got.version, err)
			}
		} else if flip != 3 || frameKind(b[3]) > kindGoodbye {
			if _, err := decodeFrame(b); !errors.Is(err, ErrMalformed) {
				t.Fatalf("byte %d changed: %v", flip, err)
			}
		}
	})
}

func TestInProcessKindsStayInProcess(t *testing.T) {
	for _, k := range []frameKind{0, kindMemory, kindAbandon, kindAbandon + 1, 255} {
		if _, err := decodeFrame(frame{kind: k}.append(nil)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%v: %v", k, err)
		}
	}
}

func TestGreetingRoundTrip(t *testing.T) {
	from, to := Address{Token: [16]byte{1}}, Address{Token: [16]byte{2}}
	g := greeting{from: 3, to: 1, token: to.Token, own: from.Token, roster: [16]byte{9}}
	got, err := decodeGreeting(g.encode())
	if err != nil || got != g {
		t.Fatalf("got %v, %v", got, err)
	}
	if !got.shows(from, to) || got.shows(to, from) || got.shows(from, from) || got.shows(to, to) {
		t.Error("a greeting must show both secrets")
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(frame{kind: kindHello, payload: greeting{from: 1}.encode()}.append(nil))
	f.Add(frame{kind: kindRegion, id: 7, payload: regionOffer{size: 4096, populate: true}.encode()}.append(nil))
	f.Add(frame{kind: kindMessage, payload: []byte("hello")}.append(nil))
	f.Add(frame{kind: kindGoodbye}.append(nil))
	f.Add([]byte("WM"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := decodeFrame(b)
		if err == nil && fr.version == frameVersion && !bytes.Equal(fr.append(nil), b) {
			t.Fatal("decoded and encoded again, it differs")
		}
		if err == nil {
			switch fr.kind {
			case kindHello, kindWelcome:
				var g greeting
				if g, err = decodeGreeting(fr.payload); err == nil && !bytes.Equal(g.encode(), fr.payload) {
					t.Fatal("greeting differs")
				}
			case kindRegion:
				var o regionOffer
				if o, err = decodeRegionOffer(fr.payload); err == nil && (!bytes.Equal(o.encode(), fr.payload) || o.size <= 0) {
					t.Fatal("offer differs")
				}
			}
		}
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatal(err)
		}
	})
}
