package bootstrap

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged is how long sent bytes may go unacknowledged before the peer's host counts as
// gone.
const unacknowledged = 15 * time.Second

// answers reports whether the peer's host has acknowledged bytes in the last while, or since this one sent some: its
// kernel does, whatever its processes do.
func answers(conn *net.TCPConn, within time.Duration) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var info *unix.TCPInfo
	failed := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if failed != nil || err != nil {
		return false
	}
	ago := time.Duration(info.Last_ack_recv) * time.Millisecond
	return ago <= within || info.Last_ack_recv <= info.Last_data_sent
}

// unread reports whether bytes of the peer have come that this process has not read yet.
func unread(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	failed := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return failed == nil && err == nil && n > 0
}

// tune makes the connection notice a peer whose host or network is gone without a farewell.
func tune(conn *net.TCPConn) {
	conn.SetKeepAliveConfig(keepAlive)
	if raw, err := conn.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
		})
	}
}
