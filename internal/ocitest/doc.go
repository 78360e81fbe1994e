// Package ocitest makes small OCI images in process and serves them from a
// registry on the loopback interface, so that tests of image handling need no
// network. It is for tests only.
package ocitest
