package weft

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/shm"
)

// FuzzPeerInfo reads what a peer tells in Join. Whatever it reads, it writes the same way.
func FuzzPeerInfo(f *testing.F) {
	l, err := shm.Listen()
	if err != nil {
		f.Fatal(err)
	}
	own := peerInfo{address: l.Address(), cpus: channel.Affinity()}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	whole, err := own.append(nil)
	if err != nil {
		f.Fatal(err)
	}
	if back, err := parsePeerInfo(whole); err != nil || back.cpus != own.cpus || !back.address.SameProcess(own.address) {
		f.Fatalf("its own information reads %+v: %v", back, err)
	}
	f.Add(whole)
	own.device = messageOf(gpuInfo{sms: 132, virtual: true, bus: "0000:1b:00.0"}.encode(), nil)
	onGPU, err := own.append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(onGPU)
	f.Add(onGPU[:4+channel.CPUBytes+2+10])
	f.Add([]byte{})
	f.Add(whole[:4])
	f.Add(whole[:4+channel.CPUBytes-1])
	f.Add(whole[:len(whole)-1])
	f.Add(append(bytes.Clone(whole), 0))
	f.Add(append([]byte{peerInfoVersion + 1}, whole[1:]...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parsePeerInfo(raw)
		if err != nil {
			if !errors.Is(err, ErrMismatch) && !errors.Is(err, shm.ErrMalformed) {
				t.Fatalf("%x is refused with %v", raw, err)
			}
			return
		}
		if again, err := c.append(nil); err != nil || !bytes.Equal(again, raw) {
			t.Fatalf("%x reads as the information %x: %v", raw, again, err)
		}
	})
}

// FuzzGPUInfo reads what a peer tells of its GPU.
func FuzzGPUInfo(f *testing.F) {
	own := gpuInfo{uuid: cuda.UUID{1, 2}, sms: 132, virtual: true, fd: true, bus: "0000:1b:00.0"}
	if back, err := parseGPUInfo([]byte(own.encode())); err != nil || back != own {
		f.Fatalf("its own information reads %+v: %v", back, err)
	}
	f.Add([]byte(own.encode()))
	f.Add([]byte(gpuInfo{sms: 1}.encode()))
	f.Add([]byte(gpuInfo{}.encode()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := parseGPUInfo(raw)
		switch {
		case err != nil && !errors.Is(err, ErrMismatch):
			t.Fatalf("%x is refused with %v", raw, err)
		case err == nil && (p.sms <= 0 || len(p.encode()) != len(raw)):
			t.Fatalf("%x reads as %+v", raw, p)
		}
	})
}

// FuzzSegment reads what a peer tells of its segment of a window: what is accepted lies inside of its
// allocation.
func FuzzSegment(f *testing.F) {
	own := segment{kind: registeredSegment, base: 1 << 40, extent: 4096, offset: 96, ipc: cuda.IPCHandle{7}}
	if back, err := parseSegment(own.encode(), 4000); err != nil || back != own {
		f.Fatalf("its own part reads %+v: %v", back, err)
	}
	f.Add(own.encode(), 4000)
	f.Add(own.encode(), 4001)
	for _, bad := range []segment{
		{},
		{kind: virtualSegment, base: 1},
		{kind: virtualSegment, extent: 1},
		{kind: plainSegment, base: 1, extent: 1, offset: 2},
		{kind: 4, base: 1, extent: 1},
		{kind: plainSegment, base: 1, extent: -1},
		{kind: plainSegment, base: 1, extent: 1, offset: -1},
	} {
		if _, err := parseSegment(bad.encode(), 1); !errors.Is(err, ErrMismatch) {
			f.Errorf("%+v is taken: %v", bad, err)
		}
		f.Add(bad.encode(), 1)
	}
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, raw []byte, size int) {
		size = max(size, 0)
		p, err := parseSegment(raw, size)
		switch {
		case err != nil && !errors.Is(err, ErrMismatch):
			t.Fatalf("%x is refused with %v", raw, err)
		case err == nil && (p.offset < 0 || p.extent-p.offset < size || !bytes.Equal(p.encode(), raw)):
			t.Fatalf("%x reads as %+v", raw, p)
		}
	})
}

// FuzzAgreed judges notes of three ranks, of which the middle one may be masked.
func FuzzAgreed(f *testing.F) {
	f.Add([]byte("=x"), []byte("=x"), []byte("=x"), false)
	f.Add([]byte("=x"), []byte("=y"), []byte("=x"), true)
	f.Add([]byte("=x"), []byte("=x"), []byte("!no"), false)
	f.Add([]byte{}, []byte("="), []byte("!"), false)
	f.Add([]byte("=x"), []byte{}, []byte{}, true)
	f.Fuzz(func(t *testing.T, a, b, c []byte, masked bool) {
		note := func(n []byte) []byte { return append([]byte{}, n[:min(len(n), noteSize)]...) }
		all := [][]byte{note(a), note(b), note(c)}
		if masked {
			all[1] = nil
		}
		same := bytes.Equal(all[0], all[2]) && (masked || bytes.Equal(all[0], all[1]))
		refused := -1
		for r, n := range all {
			if refused < 0 && len(n) > 0 && n[0] == '!' {
				refused = r
			}
		}
		err := agreed("test", all)
		peer, ok := errors.AsType[*PeerError](err)
		switch {
		case refused >= 0 && (!ok || peer.Rank != refused):
			t.Fatalf("%q: %v, want one that names rank %d", all, err, refused)
		case refused < 0 && ((err == nil) != same || err != nil && !errors.Is(err, ErrMismatch)):
			t.Fatalf("%q: %v", all, err)
		}
	})
}

// TestGiveUp: the error of a join that fails names the operation once, whether ranks have found it together or not.
func TestGiveUp(t *testing.T) {
	group, err := bootstrap.NewInProcess(2)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		agreed("join", [][]byte{messageOf("heartbeat: 5s", nil), messageOf("heartbeat: 6s", nil)}),
		&opError{"join", ErrInvalid},
		&PeerError{Rank: 0, Op: "join", Err: ErrLeft},
		ErrInvalid,
	} {
		got := giveUp(group[0], err)
		if strings.Count(got.Error(), "join: ") != 1 || !strings.HasPrefix(got.Error(), "join: ") {
			t.Errorf("%q for %q", got, err)
		}
	}
	if got := giveUp(group[0], errors.New("join: a text")); got.Error() != "join: join: a text" { // which says nothing
		t.Errorf("%q", got)
	}
	for _, b := range group {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLongWords tells words apart that differ only where notes are cut.
func TestLongWords(t *testing.T) {
	long := strings.Repeat("x", 2*noteSize)
	a, b := messageOf(long+"a", nil), messageOf(long+"b", nil)
	if len(a) > noteSize || len(b) > noteSize || bytes.Equal(a, b) || !bytes.Equal(a, messageOf(long+"a", nil)) {
		t.Errorf("notes of %d and %d bytes, equal %v", len(a), len(b), bytes.Equal(a, b))
	}
	if n := messageOf("", errors.New(long)); len(n) != noteSize || n[0] != '!' {
		t.Errorf("an error's note has %d bytes", len(n))
	}
}

// FuzzNames reads names of types and reductions.
func FuzzNames(f *testing.F) {
	for d := BFloat16; d < dtypes; d++ {
		f.Add(d.String())
	}
	for o := range ops {
		f.Add(o.String())
	}
	f.Add("")
	f.Add("invalid")
	f.Add("BF16 ")
	f.Fuzz(func(t *testing.T, name string) {
		if d, err := ParseDType(name); err == nil && d.String() != name || err != nil && d != InvalidDType {
			t.Fatalf("%q reads as type %v: %v", name, d, err)
		}
		if o, err := ParseOp(name); err == nil && o.String() != name {
			t.Fatalf("%q reads as reduction %v", name, o)
		}
	})
}
