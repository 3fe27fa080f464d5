package pgsink

// ClaimLock lets tests hold a transaction open as a sink would.
var ClaimLock = claimLock
