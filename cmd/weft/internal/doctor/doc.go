// Package doctor finds out what a machine offers to Weft, and says what each finding
// means.
//
// Collect reads files below a root and asks a handful of functions, so that every
// finding can be tested on a machine that lacks it; it opens no device, loads no
// library and creates nothing that outlives it. Findings is a pure function from
// what was collected to lines for a person.
package doctor
