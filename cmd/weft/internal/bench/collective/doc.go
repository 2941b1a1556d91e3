// Package collective measures collectives on the host: all-reduce.
package collective
