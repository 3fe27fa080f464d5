// Package schema is what ent generates its client from.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
)

// Order is a row of the table orders.
type Order struct{ ent.Schema }

// Annotations are ent's.
func (Order) Annotations() []schema.Annotation { return table("orders") }

// Fields are ent's.
func (Order) Fields() []ent.Field {
	return []ent.Field{field.Int64("id"), field.String("item"), field.Int64("quantity")}
}

// Stock is a row of the table stock.
type Stock struct{ ent.Schema }

// Annotations are ent's.
func (Stock) Annotations() []schema.Annotation { return table("stock") }

// Fields are ent's.
func (Stock) Fields() []ent.Field {
	return []ent.Field{field.String("id").StorageKey("item"), field.Int64("present")}
}

func table(name string) []schema.Annotation {
	return []schema.Annotation{entsql.Annotation{Table: name}}
}
