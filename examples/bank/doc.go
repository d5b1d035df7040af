// Package bank is what the examples of adapters share: three nodes of the oracle whose leaders are
// killed, the run and its workers, the record of each transaction, and a checker of snapshot isolation.
// It knows no store.
//
// The examples move money between accounts. So the sum over all accounts is the same in each
// snapshot, and each value names the transaction that wrote it.
package bank
