package kernel

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

func sample() Cubin {
	s := spec(1)
	return Cubin{
		Key: s.Key(), Name: s.Name, Arch: s.Arch, Library: LibraryVersion, Compiler: "fake 1",
		Log: "remarks", symbols: "_Z1a\ta\n", image: "\x7fELF code",
	}
}

func encoded(t testing.TB, c Cubin) []byte {
	t.Helper()
	raw, err := encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestEntryRoundTrip(t *testing.T) {
	want := sample()
	got, err := decode(encoded(t, want))
	if err != nil || got != want {
		t.Errorf("have %+v, %v, want %+v", got, err, want)
	}
}

// TestEntryFormat: files of this format lie in caches.
func TestEntryFormat(t *testing.T) {
	raw := encoded(t, sample())
	key := sample().Key
	want := []byte("WEFTCUBN\x02\x00\x00\x00")
	want = append(want, key[:]...)
	for _, field := range []string{"kernel1", "sm_90a", "weft 2", "fake 1", "remarks", "_Z1a\ta\n", "\x7fELF code"} {
		want = append(want, byte(len(field)), 0, 0, 0)
		want = append(want, field...)
	}
	sum := sha256.Sum256(want)
	if want = append(want, sum[:]...); !bytes.Equal(raw, want) {
		t.Errorf("the entry is\n%q, want\n%q", raw, want)
	}
}

// TestEveryBit flips each bit, cuts at each byte, and adds one.
func TestEveryBit(t *testing.T) {
	raw := encoded(t, sample())
	for i := range raw {
		for bit := range 8 {
			raw[i] ^= 1 << bit
			if c, err := decode(raw); err == nil {
				t.Fatalf("bit %d of byte %d is flipped, and it is believed: %+v", bit, i, c)
			}
			raw[i] ^= 1 << bit
		}
		if _, err := decode(raw[:i]); err == nil {
			t.Fatalf("%d bytes of %d are believed", i, len(raw))
		}
	}
	if _, err := decode(append(bytes.Clone(raw), 0)); err == nil {
		t.Error("a byte too many is believed")
	}
}

// resum gives an entry the checksum that it should have: a mistake of a writer, not of a disk.
func resum(raw []byte) []byte {
	body := raw[:len(raw)-sha256.Size]
	sum := sha256.Sum256(body)
	return append(bytes.Clone(body), sum[:]...)
}

// TestEntriesWithSoundSums: the checksum is not all that is looked at.
func TestEntriesWithSoundSums(t *testing.T) {
	lengths := len(magic) + 4 + len(Key{})
	empty := sample()
	empty.image = ""
	for what, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"another magic":      {resum(append([]byte("WEFTCUBX"), encoded(t, sample())[8:]...)), errMagic.Error()},
		"a format to come":   {resum(patch(encoded(t, sample()), 8, 3)), "format is 3, this library reads 2"},
		"no image":           {encoded(t, empty), errLengths.Error()},
		"a length too short": {resum(patch(encoded(t, sample()), lengths, 6)), errLengths.Error()},
		"a length too long":  {resum(patch(encoded(t, sample()), lengths, 1000)), errLengths.Error()},
		"the last length too long": {resum(patch(encoded(t, sample()),
			minEntry-36+len("kernel1sm_90aweft 2fake 1remarks_Z1a\ta\n"), 10)), errLengths.Error()},
		"a length beyond all": {resum(patch(encoded(t, sample()), lengths, 1<<32-1)), errLengths.Error()},
		"something after it":  {resum(append(encoded(t, sample()), 0)), errLengths.Error()},
		"nothing":             {nil, errTooShort.Error()},
	} {
		if _, err := decode(c.raw); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: have %v, want %s", what, err, c.want)
		}
	}
}

func patch(raw []byte, at int, to uint32) []byte {
	binary.LittleEndian.PutUint32(raw[at:], to)
	return raw
}

func TestEntryTooLarge(t *testing.T) {
	c := sample()
	c.image = strings.Repeat("x", maxEntry)
	if _, err := encode(c); !errors.Is(err, errTooLarge) {
		t.Errorf("encode: %v, want %v", err, errTooLarge)
	}
	if _, err := decode(make([]byte, maxEntry+1)); !errors.Is(err, errTooLarge) {
		t.Errorf("decode: %v, want %v", err, errTooLarge)
	}
}

// FuzzDecode: whatever is believed is what encode makes of it.
func FuzzDecode(f *testing.F) {
	raw := encoded(f, sample())
	bare := sample()
	bare.Name, bare.Arch, bare.Library, bare.Compiler, bare.Log, bare.symbols = "", "", "", "", "", ""
	f.Add(raw)
	f.Add(encoded(f, bare))
	f.Add(raw[:len(raw)/2])
	f.Add(raw[:minEntry])
	f.Add(patch(bytes.Clone(raw), 8, 3))
	f.Add(patch(bytes.Clone(raw), 44, 1<<32-1))
	f.Add([]byte(magic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		whole := raw
		for range 2 {
			if c, err := decode(whole); err == nil {
				if again := encoded(t, c); !bytes.Equal(again, whole) {
					t.Fatalf("%q is believed, and %q is what it says", whole, again)
				}
			}
			if len(raw) < sha256.Size {
				return
			}
			whole = resum(raw) // past the checksum, which a fuzzer does not guess
		}
	})
}
