package bootstrap

import (
	"net"
	"time"
)

// keepAlive probes a silent connection, so that a vanished host is noticed within some eleven
// seconds.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}
