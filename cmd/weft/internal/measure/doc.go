// Package measure turns timings into the figures that a benchmark prints, and fixes
// the names under which it prints them.
//
// An operation of several ranks is over when its slowest rank is done, so each
// iteration counts with its slowest rank's time, and the percentiles are over
// iterations. A Record is one line of --json output; its keys are stable.
package measure
