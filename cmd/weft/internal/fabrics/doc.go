// Package fabrics measures a provider of libfabric between two ranks, and beside it the floor: a bare
// TCP connection between the same two processes, which spin as the fabric's waits do.
//
// Every row is the best of a number of bursts, each with its median, so that the load of other
// programs shows as little as it can. What arrives is checked in the same run.
package fabrics
