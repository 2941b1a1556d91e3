package fabric

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
)

// keys makes the keys of regions, where the owner picks them. libfabric's tcp takes writes from whoever finds the
// port, so nobody may guess a key; and none may come twice, so that writes with an old one fail. A key is the epoch and
// a serial number, or the number alone where keys are short, encrypted by a secret of the domain.
type keys struct {
	secret [32]byte
	bytes  int // of a key: 1 to 8
	serial uint32
}

func newKeys(bytes int) keys {
	k := keys{bytes: min(max(bytes, 1), 8)}
	_, _ = rand.Read(k.secret[:]) // never fails
	return k
}

// next makes a key that this domain has not had.
func (k *keys) next(epoch uint32) uint64 {
	k.serial++
	if k.bytes < 8 {
		return k.encrypt(uint64(k.serial))
	}
	return k.encrypt(uint64(epoch)<<32 | uint64(k.serial))
}

// encrypt is a Feistel network: a permutation of the numbers of k.bytes bytes, of the low ones of v.
func (k *keys) encrypt(v uint64) uint64 {
	const rounds = 6
	half := 4 * k.bytes // bits
	mask := uint64(1)<<half - 1
	left, right := v>>half&mask, v&mask
	block := make([]byte, 0, len(k.secret)+9)
	for round := range byte(rounds) {
		block = append(append(block[:0], k.secret[:]...), round)
		sum := sha256.Sum256(binary.LittleEndian.AppendUint64(block, right))
		left, right = right, left^binary.LittleEndian.Uint64(sum[:])&mask
	}
	return left<<half | right
}

// newPassword makes a password for a queue to which writes bring so many bytes: 0 if they have no room for one.
func newPassword(bytes int) uint32 {
	if bytes < 8 {
		return 0
	}
	var b [4]byte
	_, _ = rand.Read(b[:])
	return max(binary.LittleEndian.Uint32(b[:]), 1)
}
