import type { Queryable } from '../db/sql.ts'
import { declarations } from '../declarations.ts'
import type { Services } from '../process/services.ts'
import type { Problem } from './errors.ts'
import type { Json } from './flatten.ts'
import type { Kind, KindRow } from './kind.ts'

/** A call of an operation with flat arguments. */
export type FlatArguments = { operation: string; args: Json }

/** Where an attribute of a resource that its record does not show comes from. */
export type Attribute =
  /** A field of the answer of an operation, which decides who sees it. */
  | { read: string; field: string }
  /** A field of the answer that created the resource, and of no other. */
  | { once: string }

/**
 * A type of resources that templates declare. Its properties are the arguments of the operations that create and change one,
 * so that a field which a body gets is a property from then on.
 */
export type ResourceType<Row extends KindRow = any> = {
  /** What templates call it, and other names that they may use. */
  name: string
  aliases: readonly string[]
  kind: string
  /** Operations by their ids; `tags` sets the tags of types whose `update` does not. */
  create: string
  read: string
  update: string | null
  tags: string | null
  delete: string
  /** Arguments of these that are no properties. */
  without: readonly string[]
  /** Properties that can be set but not changed, beside those that `update` does not take. */
  fixed: readonly string[]
  /** Properties whose change makes another resource in place of this one. */
  replaced: readonly string[]
  /** Properties whose change gives the resource another id. */
  moving: readonly string[]
  /** Properties that depend on each other: a change of one writes all that are declared. */
  together: readonly string[]
  /** Those of `together` that are no longer declared are dropped. */
  exhaustive: boolean
  /** Properties whose values are neither shown nor kept in clear. */
  writeOnly: readonly string[]
  attributes: Readonly<Record<string, Attribute>>
  /** What properties are that nothing was given for. */
  defaults: Json
  /** Arguments of every delete. */
  deleteWith: Json
  /** Properties that stand for arguments of other forms, with what they mean. */
  translate?: {
    /** JSON Schema of each such property; `required` of them. */
    properties: Readonly<Record<string, Json>>
    required: readonly string[]
    /** The arguments that properties stand for. */
    arguments(properties: Json): Json
    /** The properties that a record shows. */
    shown(record: Json): Json
  }
  /** What is wrong with properties beyond their schemas, as far as they alone tell; paths begin with a property. */
  check?: (properties: Json) => readonly Problem[]
  /** The resource under an id, where it is more than the row of its kind. */
  find?: (db: Queryable, id: string) => Promise<Row | null>
  /** The record of what `find` gives; default what the kind presents. */
  present?: (row: Row) => Json
  /** Whether a resource is one that a template would make; default all are. */
  exported?: (row: Row) => boolean
  /** Resources that are made and deleted with one. */
  owns?: (row: Row) => readonly (string | null)[]
  /** Write-only properties that a resource has a value of; default all. */
  hides?: (row: Row) => readonly string[]
  /** The record in the answer of `create` and `changing`; default the answer. */
  made?: (answer: Json) => Json
  /** Properties of a resource that is created, with defaults that depend on what is there. */
  complete?: (services: Services, db: Queryable, properties: Json) => Promise<Json>
  /** How the properties given are changed where that takes another call. */
  changing?: (row: Row, changed: Json) => FlatArguments
  /** How a resource is deleted where that takes another call; null where it cannot be and is left as it is. */
  deleting?: (row: Row) => FlatArguments | null
}

/** Every type of resources that the modules declare. */
export const resourceTypes = declarations<ResourceType>('resource type', ({ name }) => name)

const pascal = (name: string): string => name.replace(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase())

/** Declares the resource type of a kind whose operations follow the conventions; `given` is what is different. */
export function resourceType<Row extends KindRow>(
  kind: Kind<Row, any>,
  given: Partial<ResourceType<Row>> = {},
): ResourceType<Row> {
  const noun = pascal(kind.name)
  return {
    name: kind.name,
    aliases: [],
    kind: kind.name,
    create: `create${noun}`,
    read: `get${noun}`,
    update: `update${noun}`,
    tags: kind.tags ? `replace${noun}Tags` : null,
    delete: `delete${noun}`,
    without: [],
    fixed: [],
    replaced: [],
    moving: [],
    together: [],
    exhaustive: false,
    writeOnly: [],
    attributes: {},
    defaults: {},
    deleteWith: {},
    ...given,
  }
}
