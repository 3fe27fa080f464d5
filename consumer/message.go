package consumer

import "github.com/epochfence/epochfence/epoch"

// Message is one message of a partition. See [epoch.Message].
type Message = epoch.Message

// Header is one header of a message.
type Header = epoch.Header
