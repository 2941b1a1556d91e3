package bootstrap

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged is how long sent bytes may go unacknowledged before the peer's host counts as
// gone.
const unacknowledged = 15 * time.Second

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
