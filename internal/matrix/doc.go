// Package matrix holds what retrip's proof needs beyond the root module: an
// HTTP/2 origin that answers with frames of its choice, proxies, the table of
// every fault with every method and protocol, and the stress test.
//
// The table is printed by
//
//	go -C internal/matrix test -run TestMatrix -table ../../docs/matrix.md
//
// where -table names the file, relative to this folder, that it is written to.
package matrix
