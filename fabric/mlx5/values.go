package mlx5

// EntryBytes is the size of an entry of a send queue, SegmentBytes that of a segment, and CompletionBytes that of an
// entry of a completion queue.
const (
	EntryBytes      = 64
	SegmentBytes    = 16
	CompletionBytes = 64
)

// Where fields lie in an entry.
const (
	ControlAt    = 0
	QueueAt      = 4
	FlagsAt      = 11
	ImmediateAt  = 12
	RemoteAt     = 16
	RemoteKeyAt  = 24
	DataAt       = 32
	DataKeyAt    = 36
	DataAddress  = 40
	ResultAt     = 48
	inlineFromAt = 36
)

// Where fields lie in a completion. StatusAt is a word that a reader loads at once: the index, a signature, and the
// byte with opcode and owner.
const (
	VendorAt          = 54
	SyndromeAt        = 55
	CompletionQueueAt = 56
	StatusAt          = 60
	OwnerAt           = 63
)

// Words of a doorbell record.
const (
	ReceiveRecord = 0
	SendRecordAt  = 1 // in words of 4 bytes
)

// RegisterHalf is the distance of the two buffers of a doorbell register, between which some writers alternate.
const RegisterHalf = 256

// Limits.
const (
	MaxDepth    = 1 << 15         // entries of a queue
	MaxInline   = 28              // bytes in an entry of one block
	MaxMessage  = 1 << 30         // bytes of a write
	InlineBit   = uint32(1) << 31 // of a byte count: the payload follows
	QueueMask   = 1<<24 - 1
	IndexMask   = 1<<16 - 1
	ConsumeMask = 1<<24 - 1
	segmentMask = 0x3f
)

// An Opcode says what an entry asks for.
type Opcode uint8

// Opcodes of entries.
const (
	Nop            Opcode = 0x00
	Write          Opcode = 0x08
	WriteImmediate Opcode = 0x09
	CompareSwap    Opcode = 0x11
	FetchAdd       Opcode = 0x12
	MaskedFetchAdd Opcode = 0x15
)

// Modifiers of MaskedFetchAdd: how wide the word is.
const (
	Masked4 = 8
	Masked8 = 9
)

// Flags of an entry.
type Flags uint8

// Flags of an entry. Fence makes it wait for the atomics and reads before it.
const (
	Solicited  Flags = 0x02
	Signalled  Flags = 0x08
	SmallFence Flags = 0x20
	Fence      Flags = 0x80
)

// CompletionKind is what a completion reports.
type CompletionKind uint8

// Kinds of completions. KindNone is what the driver fills a fresh queue with.
const (
	KindDone          CompletionKind = 0
	KindError         CompletionKind = 13
	KindResponseError CompletionKind = 14
	KindNone          CompletionKind = 15
)

// FreshOwner is the last byte of each completion in a fresh queue.
const FreshOwner = uint8(KindNone)<<4 | 1

// Syndrome is why an entry failed.
type Syndrome uint8

// Syndromes of errors.
const (
	LocalLength     Syndrome = 0x01
	LocalOperation  Syndrome = 0x02
	LocalProtection Syndrome = 0x04
	Flushed         Syndrome = 0x05
	MemoryWindow    Syndrome = 0x06
	BadResponse     Syndrome = 0x10
	LocalAccess     Syndrome = 0x11
	RemoteRequest   Syndrome = 0x12
	RemoteAccess    Syndrome = 0x13
	RemoteOperation Syndrome = 0x14
	RetryExceeded   Syndrome = 0x15
	NotReady        Syndrome = 0x16
	RemoteAborted   Syndrome = 0x22
)

var syndromes = map[Syndrome]string{
	LocalLength:     "the length does not fit",
	LocalOperation:  "the entry is not one that the card carries out",
	LocalProtection: "this rank's key or range is wrong",
	Flushed:         "an entry before it failed",
	MemoryWindow:    "a memory window could not be bound",
	BadResponse:     "the peer's card answered nonsense",
	LocalAccess:     "this rank's memory was not to be written",
	RemoteRequest:   "the peer's card does not carry out such a request",
	RemoteAccess:    "the peer's key, range or permission is wrong",
	RemoteOperation: "the peer's card failed",
	RetryExceeded:   "the peer's card does not answer",
	NotReady:        "the peer has no receive posted",
	RemoteAborted:   "the peer's queue pair was aborted",
}
