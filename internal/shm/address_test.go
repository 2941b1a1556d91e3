package shm

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawAddress(t *rapid.T) Address {
	a := Address{
		Host:   string(rapid.SliceOfN(rapid.Byte(), 1, maxHost).Draw(t, "host")),
		PID:    rapid.IntRange(1, 1<<31-1).Draw(t, "pid"),
		UID:    rapid.IntRange(0, 1<<31-1).Draw(t, "uid"),
		Socket: string(rapid.SliceOfN(rapid.Byte(), 1, maxSocket).Draw(t, "socket")),
	}
	copy(a.Process[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "process"))
	copy(a.Token[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "token"))
	return a
}

func TestAddressRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawAddress(t)
		b, err := want.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var got Address
		if err := got.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("got %#v, want %#v", got, want)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		for _, bad := range [][]byte{b[:cut], append(b[:len(b):len(b)], 0)} {
			if err := got.UnmarshalBinary(bad); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%d of %d bytes: %v", len(bad), len(b), err)
			}
		}
		if got != want {
			t.Fatal("a failed UnmarshalBinary changed the address")
		}
	})
}

func TestAddressRefusesWhatItCannotEncode(t *testing.T) {
	good := Address{Host: "h", PID: 1, Socket: "s"}
	for name, change := range map[string]func(*Address){
		"no host":      func(a *Address) { a.Host = "" },
		"long host":    func(a *Address) { a.Host = strings.Repeat("h", maxHost+1) },
		"no socket":    func(a *Address) { a.Socket = "" },
		"long socket":  func(a *Address) { a.Socket = strings.Repeat("s", maxSocket+1) },
		"pid 0":        func(a *Address) { a.PID = 0 },
		"pid 2^31":     func(a *Address) { a.PID = -1 },
		"negative uid": func(a *Address) { a.UID = -1 },
	} {
		a := good
		change(&a)
		if _, err := a.MarshalBinary(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddressCompares(t *testing.T) {
	a := Address{Host: "a", Process: [16]byte{1}}
	b := Address{Host: "a", Process: [16]byte{2}}
	c := Address{Host: "c", Process: [16]byte{1}}
	got := []bool{a.SameHost(b), a.SameHost(c), a.SameProcess(a), a.SameProcess(b), a.SameProcess(c)}
	if diff := cmp.Diff([]bool{true, false, true, false, false}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAddressKeepsItsSecret(t *testing.T) {
	a := Address{Host: "host", PID: 42, Token: [16]byte([]byte("sixteen secrets!"))}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		s := fmt.Sprintf(format, a)
		if strings.Contains(s, "secret") || strings.Contains(s, "115, 105") || strings.Contains(s, "0x73") ||
			!strings.Contains(s, "42") {
			t.Errorf("%s prints %s", format, s)
		}
	}
}

func FuzzAddress(f *testing.F) {
	good, err := Address{
		Host: "host/0123", PID: 77, UID: 1000, Socket: "weft-0123", Process: [16]byte{1},
		Token: [16]byte{2},
	}.MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var a Address
		if err := a.UnmarshalBinary(b); err != nil {
			if !errors.Is(err, ErrMalformed) || a != (Address{}) {
				t.Fatalf("%v, %v", err, a)
			}
			return
		}
		again, err := a.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, again); diff != "" {
			t.Fatal(diff)
		}
	})
}
