// Package topology lists the CPUs that this process may use and their layout, so that ranks can be
// pinned to neighbouring cores and "weft doctor" can show what the machine has.
//
// Three numbers differ and all three matter. The machine has online CPUs; the
// affinity mask allows this process some of them; and a cgroup quota may grant
// fewer CPU-seconds per second than the mask suggests. Spinning is cheap only up
// to the smallest of the three.
package topology
