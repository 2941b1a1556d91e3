// Package topology says which CPUs this process may use and how they are laid
// out, so that ranks can be pinned to neighbouring cores and a person can be
// told what the machine really offers.
//
// Three numbers differ and all three matter. The machine has online CPUs; the
// affinity mask allows this process some of them; and a cgroup quota may grant
// fewer CPU-seconds per second than the mask suggests. Spinning is cheap only up
// to the smallest of the three.
package topology
