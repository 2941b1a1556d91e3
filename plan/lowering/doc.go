// Package lowering makes a plan of a recorded program: what a program said, call by call, becomes the
// operations of blocks. It numbers what blocks use, fuses operations, orders the threads of a block, and
// repeats all of it for instances.
//
// The rules are those of MSCCL++'s Python package, which nothing but that package's behaviour specifies, so a
// program that was written for it gives the same text. They live here and nowhere else. Python's
// mscclpp.language records calls and checks their arguments, and hands the recording to [Decode] as JSON.
//
// # Unsound rules
//
// Some of MSCCL++'s rules change what a program means, or leave threads of a block unordered. [Program.Sound]
// replaces them by rules that do not, and the text is another one then:
//
//   - Two reductions in a row to one destination become one that adds the sources of both, though the
//     second would overwrite what the first gave. They stay apart, unless the destination is the source.
//   - A reduction and a store through a switch become one operation that does not write the destination of
//     the reduction, and that writes where it read. They stay apart, unless that is what they say.
//   - Puts from several buffers become one, whose sources MSCCL++ takes to be in the first. They stay apart.
//   - Waits for semaphores or channels become one, though several blocks take from one of these. Its threads come in
//     any order, and may hold one while they wait for another. They stay apart, and so do releases of such a semaphore.
//   - Operations become one that writes a part of what it also touches elsewhere. They stay apart.
//   - A pipeline that ends in a barrier counts as one that begins with one, so what is before it loses its
//     barrier. Only its first operation counts.
//   - Of what operations touch, some is left out when barriers are placed: the data of a reduction of packets,
//     what switches and remote operations touch, what the operation before which a barrier was placed touched.
//     All of it counts.
//
// [Fuse] and [Fix] apply the sound rules to plans that were not recorded: those of package plan's builder, and files.
// [Join] applies them to two operations, and [Replicate] makes instances.
//
// Two of MSCCL++'s defects are mended without that, for with more than one instance no program can want them:
// instances share the slot of a reduction that copies packets, and a chunk that two operations of a
// switch name moves twice.
package lowering
