//go:build !linux

package bootstrap

import "net"

// unread does not know.
func unread(*net.TCPConn) bool { return false }

// tune makes the connection notice a peer whose host or network is gone without a farewell.
func tune(conn *net.TCPConn) { conn.SetKeepAliveConfig(keepAlive) }
