package shm

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Address says how a rank is reached by the other ranks of its host. It holds a secret: give it to
// the job's ranks only.
type Address struct {
	Host    string   // two processes with the same Host see each other's sockets and process ids
	PID     int      // process id, as the processes of Host see it
	UID     int      // effective user id
	Process [16]byte // drawn once per process: distinguishes ranks of one process from ranks of another
	Socket  string   // name of the abstract socket, random, without the leading NUL
	Token   [16]byte // random: a peer must show it to be admitted
}

const (
	addressVersion = frameVersion
	addressFixed   = 1 + 4 + 4 + 16 + 16 + 1 + 1 // everything but the two strings
	maxHost        = 255
	maxSocket      = 107 // sun_path without its NUL
)

// SameHost reports whether the two ranks can share memory.
func (a Address) SameHost(b Address) bool { return a.Host == b.Host }

// SameProcess reports whether the two ranks are goroutines of one process.
func (a Address) SameProcess(b Address) bool { return a.SameHost(b) && a.Process == b.Process }

// String names the rank without its secret.
func (a Address) String() string {
	return fmt.Sprintf("process %d of user %d on %s", a.PID, a.UID, a.Host)
}

// GoString is String, so that no way of printing an address shows its secret.
func (a Address) GoString() string { return a.String() }

// MarshalBinary encodes the address: version, pid, uid, process, token, then host and socket with
// their lengths.
func (a Address) MarshalBinary() ([]byte, error) {
	switch {
	case a.Host == "" || len(a.Host) > maxHost:
		return nil, fmt.Errorf("address: host of %d bytes: %w", len(a.Host), ErrMalformed)
	case a.Socket == "" || len(a.Socket) > maxSocket:
		return nil, fmt.Errorf("address: socket name of %d bytes: %w", len(a.Socket), ErrMalformed)
	case a.PID <= 0 || a.PID > math.MaxInt32:
		return nil, fmt.Errorf("address: process id %d: %w", a.PID, ErrMalformed)
	case a.UID < 0 || int64(a.UID) > math.MaxUint32:
		return nil, fmt.Errorf("address: user id %d: %w", a.UID, ErrMalformed)
	}
	b := make([]byte, 0, addressFixed+len(a.Host)+len(a.Socket))
	b = append(b, addressVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(a.PID))
	b = binary.LittleEndian.AppendUint32(b, uint32(a.UID))
	b = append(b, a.Process[:]...)
	b = append(b, a.Token[:]...)
	b = append(b, byte(len(a.Host)))
	b = append(b, a.Host...)
	b = append(b, byte(len(a.Socket)))
	return append(b, a.Socket...), nil
}

// UnmarshalBinary decodes the output of MarshalBinary, and nothing else: its error wraps
// [ErrMalformed]. It leaves a alone on error.
func (a *Address) UnmarshalBinary(b []byte) error {
	if len(b) > 0 && b[0] != addressVersion {
		return &versionError{b[0]}
	}
	if len(b) < addressFixed {
		return fmt.Errorf("address of %d bytes: %w", len(b), ErrMalformed)
	}
	var r Address
	pid := binary.LittleEndian.Uint32(b[1:])
	if pid == 0 || pid > math.MaxInt32 {
		return fmt.Errorf("address: process id %d: %w", pid, ErrMalformed)
	}
	r.PID = int(pid)
	uid := binary.LittleEndian.Uint32(b[5:])
	if uint64(uid) > math.MaxInt {
		return fmt.Errorf("address: user id %d: %w", uid, ErrMalformed)
	}
	r.UID = int(uid)
	b = b[9:]
	b = b[copy(r.Process[:], b):]
	b = b[copy(r.Token[:], b):]
	var ok bool
	if r.Host, b, ok = cutString(b, maxHost); !ok {
		return fmt.Errorf("address: host: %w", ErrMalformed)
	}
	if r.Socket, b, ok = cutString(b, maxSocket); !ok {
		return fmt.Errorf("address: socket name: %w", ErrMalformed)
	}
	if len(b) != 0 {
		return fmt.Errorf("address: %d bytes too many: %w", len(b), ErrMalformed)
	}
	*a = r
	return nil
}

// cutString takes a string of 1 to limit bytes, preceded by its length, off the front of b.
func cutString(b []byte, limit int) (s string, rest []byte, ok bool) {
	if len(b) == 0 {
		return "", nil, false
	}
	n := int(b[0])
	if n == 0 || n > limit || n > len(b)-1 {
		return "", nil, false
	}
	return string(b[1 : 1+n]), b[1+n:], true
}
