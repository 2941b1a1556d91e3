package shm

import "fmt"

// MaxMessage is the largest payload of [Mesh.Send], in bytes.
const MaxMessage = 4096

// EventKind is the kind of a peer's event.
type EventKind uint8

// The kinds of [Event].
const (
	// Left: the peer closed its mesh in good order.
	Left EventKind = iota + 1
	// Died: the peer's process ended, or its connection broke, without a goodbye. Err says how it
	// was noticed.
	Died
	// Message: the peer sent Data.
	Message
)

func (k EventKind) String() string {
	switch k {
	case Left:
		return "left"
	case Died:
		return "died"
	case Message:
		return "message"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is something that a peer did.
type Event struct {
	Peer int // position in the list that the mesh was made of
	Kind EventKind
	Data []byte // of a Message; the receiver owns it
	Err  error  // of Left and Died: wraps ErrLeft or ErrDied
}
