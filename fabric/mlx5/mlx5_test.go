package mlx5_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/fabric/mlx5"
)

// queue and the others are what the vectors were made with.
const queue = 0x123456

var (
	remote = mlx5.Range{Address: 0x7fabcdef0100, Key: 0x0badcafe}
	word   = mlx5.Range{Address: 0x7fabcdef0108, Key: 0x0badcafe}
	local  = mlx5.Range{Address: 0x7f0011223344, Key: 0xa1b2c3d4, Bytes: 7168}
	near   = mlx5.Range{Address: 0x7f0011223344, Key: 0xa1b2c3d4, Bytes: 8}
	half   = mlx5.Range{Address: 0x7f0011223344, Key: 0xa1b2c3d4, Bytes: 4}
	value  = []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}
)

const add = 0x0102030405060708

// entries are what the vectors are of, by their names.
var entries = map[string]mlx5.Entry{
	"write":           {Opcode: mlx5.Write, Remote: remote, Local: local},
	"write signalled": {Index: 1, Opcode: mlx5.Write, Flags: mlx5.Signalled, Remote: remote, Local: local},
	"inline 8":        {Index: 2, Opcode: mlx5.Write, Flags: mlx5.Signalled, Remote: remote, Inline: value},
	"inline 4":        {Index: 3, Opcode: mlx5.Write, Flags: mlx5.Signalled, Remote: remote, Inline: value[:4]},
	"inline 16": {
		Index: 4, Opcode: mlx5.Write, Flags: mlx5.Signalled, Remote: remote,
		Inline: []byte("0123456789abcdef"),
	},
	"write immediate": {
		Index: 5, Opcode: mlx5.WriteImmediate, Flags: mlx5.Signalled, Immediate: 0xdeadbeef,
		Remote: remote, Local: local,
	},
	"fetch and add": {
		Index: 6, Opcode: mlx5.FetchAdd, Flags: mlx5.Signalled | mlx5.Fence, Remote: word, Local: near,
		Add: add,
	},
	"index fffe":  {Index: 0xfffe, Opcode: mlx5.Write, Flags: mlx5.Signalled, Remote: remote, Local: near},
	"index ffff":  {Index: 0xffff, Opcode: mlx5.Write, Flags: mlx5.Signalled, Remote: remote, Local: near},
	"index 10000": {Index: 0, Opcode: mlx5.Write, Flags: mlx5.Signalled, Remote: remote, Local: near},
	"masked add 4": {
		Index: 7, Opcode: mlx5.MaskedFetchAdd, Modifier: mlx5.Masked4, Remote: word, Local: half,
		Add: 0xfffffffe,
	},
	"masked add 8": {
		Index: 8, Opcode: mlx5.MaskedFetchAdd, Modifier: mlx5.Masked8, Remote: word, Local: near,
		Add: add,
	},
	"nop": {Index: 9, Opcode: mlx5.Nop, Flags: mlx5.Signalled},
}

// A vector is a line of testdata/vectors.txt.
type vector struct {
	name                    string
	entry, record, register []byte
}

func vectors(t testing.TB) (all []vector) {
	t.Helper()
	text, err := os.ReadFile("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(strings.TrimSpace(line), " | ")
		if len(parts) != 4 {
			t.Fatalf("%q has %d parts", line, len(parts))
		}
		v := vector{name: parts[0]}
		for i, to := range []*[]byte{&v.entry, &v.record, &v.register} {
			if *to, err = hex.DecodeString(strings.ReplaceAll(parts[i+1], " ", "")); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, v)
	}
	return all
}

// TestVectors: entries, records and registers are rdma-core's, byte for byte, and are read as they were written.
func TestVectors(t *testing.T) {
	all := vectors(t)
	if len(all) != len(entries) {
		t.Errorf("%d vectors of %d entries", len(all), len(entries))
	}
	for _, v := range all {
		e, ok := entries[v.name]
		if !ok {
			t.Fatalf("no entry %q", v.name)
		}
		e.Queue = queue
		block := [mlx5.EntryBytes]byte{}
		for i := range block {
			block[i] = 0xee
		}
		if err := e.Encode(&block); err != nil {
			t.Fatalf("%s: %v", v.name, err)
		}
		n := len(v.entry)
		if !bytes.Equal(block[:n], v.entry) || bytes.Count(block[n:], []byte{0xee}) != len(block)-n {
			t.Errorf("%s: % x", v.name, block)
		}
		if n != e.Segments()*mlx5.SegmentBytes {
			t.Errorf("%s: %d segments, and %d bytes", v.name, e.Segments(), n)
		}
		if got, err := mlx5.Decode(&block); err != nil || !cmp.Equal(got, e) {
			t.Errorf("%s is read as %v %s", v.name, err, cmp.Diff(e, got))
		}
		if index, q := mlx5.Header(&block); index != e.Index || q != queue {
			t.Errorf("%s: header %#x, %#x", v.name, index, q)
		}
		next := uint64(e.Index) + 1
		record := binary.LittleEndian.AppendUint32(nil, mlx5.SendRecord(next))
		if !bytes.Equal(record, v.record) {
			t.Errorf("%s: record % x", v.name, record)
		}
		// The register is the entry's own head in rdma-core, and holds the next index in ours.
		for name, value := range map[string]uint64{
			"rdma-core's": binary.LittleEndian.Uint64(v.register), "our": mlx5.Register(next, queue),
		} {
			if got, q := mlx5.ReadRegister(value); got != uint16(next) || q != queue {
				t.Errorf("%s: %s register announces %#x of %#x", v.name, name, got, q)
			}
		}
	}
}

// TestRefused: entries that do not fit are refused by Encode, and by Decode where bytes can say them.
func TestRefused(t *testing.T) {
	long := make([]byte, mlx5.MaxInline+1)
	for name, e := range map[string]mlx5.Entry{
		"opcode":          {Opcode: 0x10, Remote: remote, Local: local},
		"queue":           {Opcode: mlx5.Nop, Queue: 1 << 24},
		"inline":          {Opcode: mlx5.Write, Remote: remote, Inline: long},
		"length":          {Opcode: mlx5.Write, Remote: remote, Local: mlx5.Range{Bytes: mlx5.MaxMessage + 1}},
		"result":          {Opcode: mlx5.FetchAdd, Remote: word, Local: half},
		"masked result":   {Opcode: mlx5.MaskedFetchAdd, Modifier: mlx5.Masked4, Remote: word, Local: near},
		"modifier":        {Opcode: mlx5.MaskedFetchAdd, Remote: word, Local: near},
		"write modifier":  {Opcode: mlx5.Write, Modifier: 8, Remote: word, Local: near},
		"masked operands": {Opcode: mlx5.MaskedFetchAdd, Modifier: mlx5.Masked4, Local: half, Add: 1 << 32},
	} {
		if err := e.Encode(new([mlx5.EntryBytes]byte)); !errors.Is(err, mlx5.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*[mlx5.EntryBytes]byte){
		"opcode":      func(b *[mlx5.EntryBytes]byte) { b[3] = 0x10 },
		"segments":    func(b *[mlx5.EntryBytes]byte) { b[7] = 4 },
		"no segments": func(b *[mlx5.EntryBytes]byte) { b[7] = 0 },
		"modifier":    func(b *[mlx5.EntryBytes]byte) { b[0] = 8 },
		"zero bytes":  func(b *[mlx5.EntryBytes]byte) { clear(b[32:36]) },
		"too long":    func(b *[mlx5.EntryBytes]byte) { b[32] = 0x7f },
		"inline":      func(b *[mlx5.EntryBytes]byte) { b[32], b[34], b[35] = 0x80, 0, 13 }, // in 3 segments
		"no inline":   func(b *[mlx5.EntryBytes]byte) { b[32], b[34], b[35] = 0x80, 0, 0 },
	} {
		e, block := entries["write"], [mlx5.EntryBytes]byte{}
		if err := e.Encode(&block); err != nil {
			t.Fatal(err)
		}
		change(&block)
		if got, err := mlx5.Decode(&block); !errors.Is(err, mlx5.ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// FuzzDecode: what is read is what is written, whatever the bytes are.
func FuzzDecode(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.entry)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var block, again [mlx5.EntryBytes]byte
		copy(block[:], b)
		e, err := mlx5.Decode(&block)
		if err != nil {
			return
		}
		if err := e.Encode(&again); err != nil {
			t.Fatalf("%+v was read, and not written: %v", e, err)
		}
		if got, err := mlx5.Decode(&again); err != nil || !cmp.Equal(got, e) {
			t.Errorf("%+v, %v", cmp.Diff(e, got), err)
		}
	})
}

// TestCompletions: completions are read as they were written, in their lap alone.
func TestCompletions(t *testing.T) {
	const log = 3
	var block [mlx5.CompletionBytes]byte
	block[mlx5.OwnerAt] = mlx5.FreshOwner
	for n := range uint64(1 << (log + 2)) {
		if n < 1<<log {
			if _, written := mlx5.DecodeCompletion(&block, n, log); written {
				t.Errorf("completion %d of a fresh queue was written", n)
			}
		}
		want := mlx5.Completion{Opcode: mlx5.Write, Queue: queue, Index: uint16(n * 0x1234)}
		if n%3 == 1 {
			want.Kind, want.Syndrome, want.Vendor = mlx5.KindError, mlx5.RemoteAccess, 0x88
		}
		var entry [mlx5.CompletionBytes]byte
		want.Encode(&entry, n, log)
		if got, written := mlx5.DecodeCompletion(&entry, n, log); !written || got != want {
			t.Errorf("completion %d is read as %+v, %v", n, got, written)
		}
		if _, written := mlx5.DecodeCompletion(&entry, n+1<<log, log); written {
			t.Errorf("completion %d is read in the next lap", n)
		}
		var failed *mlx5.CompletionError
		if err := want.Err(); errors.As(err, &failed) != (n%3 == 1) {
			t.Errorf("completion %d: %v", n, err)
		}
	}
	// By hand: operation, queue pair, index 0x0107, no signature, owner 1.
	var entry [mlx5.CompletionBytes]byte
	done := mlx5.Completion{Opcode: mlx5.FetchAdd, Queue: queue, Index: 0x107}
	done.Encode(&entry, 1<<log, log)
	if got := hex.EncodeToString(entry[54:]); got != "0000"+"12123456"+"0107"+"00"+"01" {
		t.Errorf("the end of a completion is %s", got)
	}
	if mlx5.Syndrome(0x77).String() != "syndrome 0x77" {
		t.Errorf("an unknown syndrome is %q", mlx5.Syndrome(0x77).String())
	}
}

// TestConsumerRecord: the record of a completion queue has 24 bits.
func TestConsumerRecord(t *testing.T) {
	for taken, want := range map[uint64]uint32{0: 0, 1: 1, 1<<24 - 1: 1<<24 - 1, 1 << 24: 0, 1<<24 + 5: 5} {
		if got := mlx5.ReadRecord(mlx5.ConsumerRecord(taken)); got != want {
			t.Errorf("%d: %#x", taken, got)
		}
	}
}
