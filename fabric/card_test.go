package fabric

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzCards: cards come from elsewhere. What is read is what its card is made from.
func FuzzCards(f *testing.F) {
	f.Add(domainCard{
		Rank: 3, Size: 8, Signals: 64, Ordered: true, Provider: "tcp", Name: []byte{2, 0}, Base: 1, Key: 2, Password: 3,
	}.encode())
	f.Add(domainCard{}.encode())
	f.Add(regionCard{Rank: 1, Base: 1 << 40, Key: 7, Length: 4096, Aligned: true}.encode())
	f.Add(regionCard{Base: ^uint64(0), Length: 2}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeDomain(b); err == nil {
			if diff := cmp.Diff(b, c.encode()); diff != "" {
				t.Errorf("domain: -read +made:\n%s", diff)
			}
		}
		if c, err := decodeRegion(b); err == nil {
			if diff := cmp.Diff(b, c.encode()); diff != "" {
				t.Errorf("region: -read +made:\n%s", diff)
			}
		}
	})
}

// TestSocketAddress reads addresses of endpoints as the kernel has them.
func TestSocketAddress(t *testing.T) {
	family := func(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }
	v4 := append(family(2), 0x1f, 0x90, 10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0)
	v6 := append(append(append(family(10), 0x1f, 0x91), make([]byte, 4+15)...), 1, 0, 0, 0, 0)
	for want, name := range map[string][]byte{
		"10.0.0.7:8080": v4, "[::1]:8081": v6, "invalid AddrPort": v4[:7],
	} {
		if got := socketAddress(name).String(); got != want {
			t.Errorf("% x: %s, want %s", name, got, want)
		}
	}
	for _, name := range [][]byte{nil, v6[:27], append(family(3), v4[2:]...)} {
		if a := socketAddress(name); a.IsValid() {
			t.Errorf("% x: %v", name, a)
		}
	}
}

// TestData: kind, source and number go through 32 bits.
func TestData(t *testing.T) {
	for _, kind := range []uint32{kindWrite, kindRequest, kindAnswer, kindNotice} {
		for _, source := range []int{0, 1, most - 1} {
			for _, number := range []uint64{0, 1, 1<<numberBits - 1, 1<<numberBits + 5} {
				k, s, n := undata(data(kind, source, number))
				if k != kind || s != source || uint64(n) != number%(1<<numberBits) {
					t.Errorf("%d %d %d came as %d %d %d", kind, source, number, k, s, n)
				}
			}
		}
	}
}

// TestBoard: parts do not overlap, and requests begin lines.
func TestBoard(t *testing.T) {
	for _, signals := range []int{1, 7, 8, 9, 64, mostIDs} {
		b := newBoard(3, signals, 4)
		if b.unread() < signals*wordSize || b.unread()%line != 0 || b.ring() < b.unread()+wordSize ||
			b.part < b.ring()+ring*line {
			t.Errorf("%d signals: unread at %d, requests at %d, part of %d", signals, b.unread(), b.ring(), b.part)
		}
		if len(b.memory) != 3*b.part+4*line {
			t.Errorf("%d signals: %d bytes", signals, len(b.memory))
		}
		want := request{kind: requestAdd, key: 1 << 63, offset: 5, value: 7, covers: 9}
		want.encode(b.memory[2*b.part+b.ring()+ring*line-line:])
		if got := b.request(2, 3*ring-1); got != want {
			t.Errorf("%d signals: request %v, want %v", signals, got, want)
		}
		b.signal(2, signals-1).Store(1)
		b.line(3)[line-1] = 1
	}
}
