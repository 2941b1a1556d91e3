package bootstrap

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged is how long sent bytes may go unacknowledged before the peer's host counts as
// gone.
const unacknowledged = 15 * time.Second

// tune makes the connection notice a peer whose host or network is gone without a farewell.
func tune(conn *net.TCPConn) {
	conn.SetKeepAliveConfig(keepAlive)
	if raw, err := conn.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
		})
	}
}
