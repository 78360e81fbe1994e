// Package durable changes files so that a crash at any moment, of the process
// or of the machine, leaves either the old state or the new one, and so that
// what a function has returned from stays.
//
// Every file is written to a temporary name in its own directory, flushed,
// renamed over its final name, and the directory flushed. Names of temporary
// files begin with [TempPrefix]; a crash may leave one behind, and whoever owns
// the directory may remove it.
package durable
