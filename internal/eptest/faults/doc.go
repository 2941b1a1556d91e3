// Package faults stops and kills ranks at random moments, and has only tests: see TestFaults.
package faults
