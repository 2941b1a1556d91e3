package bootstrap

import (
	"encoding"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var (
	_ encoding.TextMarshaler   = ID{}
	_ encoding.TextUnmarshaler = (*ID)(nil)
)

func TestID(t *testing.T) {
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewID(OnLoopback())
	if err != nil {
		t.Fatal(err)
	}
	if id.Equal(other) || !id.Equal(id) || id.IsZero() || !(ID{}).IsZero() {
		t.Error("identity of ids")
	}
	if !other.loopback() || other.targets()[0][:10] != "127.0.0.1:" {
		t.Errorf("on loopback: %v", other.targets())
	}
	// The port listens before anyone joins.
	conn, err := net.Dial("tcp", other.targets()[0])
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()

	b, err := json.Marshal(map[string]ID{"id": id})
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]ID
	if err := json.Unmarshal(b, &back); err != nil || !back["id"].Equal(id) {
		t.Errorf("%s comes back as %v, %v", b, back, err)
	}
	if err := errors.Join(id.Release(), other.Release(), other.Release(), ID{}.Release()); err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", other.targets()[0]); err == nil {
		conn.Close()
		t.Error("a released id still listens")
	}
	if _, err := NewID(OnInterface("nosuch0")); err == nil {
		t.Error("an id on no interface")
	}
}

// TestIDText: any id's text is short, and comes back; a slip of the pen does not go through.
func TestIDText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := drawID(t)
		text := id.String()
		if len(text) > MaxIDText {
			t.Fatalf("%d bytes: %s", len(text), text)
		}
		back, err := ParseID(" " + text + "\n")
		if err != nil || !back.Equal(id) {
			t.Fatalf("%v comes back as %v, %v", id, back, err)
		}
		slip := []byte(text)
		i := rapid.IntRange(0, len(slip)-1).Draw(t, "place")
		slip[i] = rapid.SampledFrom([]byte("AZaz09-_=\n ")).Draw(t, "letter")
		if back, err := ParseID(string(slip)); err == nil && string(slip) != text && strings.TrimSpace(string(slip)) != text {
			t.Fatalf("%q goes for %v", slip, back)
		}
	})
}

func drawID(t *rapid.T) ID {
	var id ID
	copy(id.job[:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "job"))
	copy(id.secret[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "secret"))
	id.port = rapid.Uint16Range(1, 65535).Draw(t, "port")
	n := idFixed + 4
	for range rapid.IntRange(1, maxAddresses).Draw(t, "addresses") {
		var a netip.Addr
		if rapid.Bool().Draw(t, "v6") {
			b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6 bytes")
			b[0] = 0xfd
			a, _ = netip.AddrFromSlice(b)
		} else {
			a = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "v4 bytes")))
		}
		if n += 1 + a.BitLen()/8; n <= maxIDBytes && !slices.Contains(id.addrs, a) {
			id.addrs = append(id.addrs, a)
		}
	}
	return id
}

// TestPublished: as many addresses as fit, and the preferred one first.
func TestPublished(t *testing.T) {
	prefer := netip.MustParseAddr("fd00::1")
	addrs := published(prefer)
	id := ID{port: 1, addrs: addrs}
	if addrs[0] != prefer || len(id.String()) > MaxIDText {
		t.Errorf("%v, %d bytes", addrs, len(id.String()))
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("")
	f.Add("weft1-")
	f.Add(ID{port: 1, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}.String())
	f.Add(ID{
		port: 65535, secret: [16]byte{1},
		addrs: []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1")},
	}.String())
	f.Add("weft1-" + strings.Repeat("A", 122))
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			return
		}
		if got := id.String(); got != strings.TrimSpace(s) {
			t.Fatalf("%q is parsed as %q", s, got)
		}
	})
}
