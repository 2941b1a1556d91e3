// Package tuning has the constants from which groups choose algorithms: a [Table] for each profile, which is
// a kind of machine.
//
// A group on the host has the profile "shared-memory". One on GPUs has a profile of its GPU's name:
// "h200-nvswitch", or if ranks share a GPU "h200-shared". This package has tables for some of them, and
// says which it takes for the others ([Builtin]). "weft tune collectives" measures others, and writes them
// into a file with the results of other searches:
//
//	{"collectives": {"h200-nvswitch": {"version": 1, ...}, "shared-memory": {...}}}
//
// A group reads the file that its Options or WEFT_TUNING name, or else weft/tuning.json in the user's cache
// directory. What a table of the file does not say is as in the one of this package. All ranks must find
// the same table: New compares them.
package tuning
