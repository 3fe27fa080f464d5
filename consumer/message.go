package consumer

import "github.com/epochfence/epochfence/epoch"

// This file gives messages a name in this package, so that a handler imports one package. Package
// epoch defines them, because sinks store them as dead letters and never import this package.

// Message is one message of a partition. See [epoch.Message].
type Message = epoch.Message

// Header is one header of a message.
type Header = epoch.Header
