// Package processes runs tests on ranks that are real processes, so that they can be killed and
// stopped.
//
// A test binary starts copies of itself. Each copy plays a part: a function that the test's
// TestMain hands to [Main]. The test commands the copies over their standard input, one line of
// JSON for a command and one for its answer, and so decides what each rank does and when. Nothing
// is left to timing: a rank is killed when another has seen what it waits for.
package processes
