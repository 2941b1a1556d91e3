//go:build !linux

package bootstrap

import "net"

// tune makes the connection notice a peer whose host or network is gone without a farewell.
func tune(conn *net.TCPConn) { conn.SetKeepAliveConfig(keepAlive) }
