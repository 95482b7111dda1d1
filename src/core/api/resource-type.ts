import { declarations } from '../base/declarations.ts'
import type { Problem } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import type { Queryable } from '../db/sql.ts'
import type { JsonObject } from './flatten.ts'
import { type Kind, type KindRow, toPascalCase } from './kind.ts'

/** A call of an operation with flat arguments. */
export type FlatArguments = { operation: string; args: JsonObject }

/** Source of an attribute that the record of a resource does not contain. */
export type Attribute =
  /** A field in the response of another operation, whose permission applies. */
  | { read: string; field: string }
  /** A field that is only in the response of the create. */
  | { once: string }

/** A resource type of templates. Its properties are the arguments of its create and update operations. */
export type ResourceType<Row extends KindRow = any> = {
  /** Name in templates, and its aliases. */
  name: string
  aliases: readonly string[]
  kind: string
  /** Operation ids; `tags` sets the tags of types whose `update` does not. */
  create: string
  read: string
  update: string | null
  tags: string | null
  delete: string
  /** Arguments of the operations that are not properties. */
  without: readonly string[]
  /** Required properties, in addition to those that `create` requires. */
  required: readonly string[]
  /** Immutable properties, in addition to those that `update` does not take. */
  fixed: readonly string[]
  /** Properties whose change replaces the resource. */
  replaced: readonly string[]
  /** Properties whose change gives the resource another id. */
  moving: readonly string[]
  /** Interdependent properties: a change of one writes all declared ones. */
  together: readonly string[]
  /**
   * Properties that are set last where references of a template form a cycle. They may only add abilities, and never
   * restrict the resource: it may be used without them, and with `retain` stays so after a failure.
   */
  later: readonly string[]
  /** Whether properties of `together` that are no longer declared are removed. */
  exhaustive: boolean
  /** Properties whose values are never returned and stored only encrypted. */
  writeOnly: readonly string[]
  attributes: Readonly<Record<string, Attribute>>
  /** Default values, in addition to defaults of the schema; an export omits properties with their default. */
  defaults: JsonObject
  /** Arguments of every delete. */
  deleteWith: JsonObject
  /** Properties with another form than the arguments. */
  translate?: {
    /** JSON Schema by property, and the names of the required ones. */
    properties: Readonly<Record<string, JsonObject>>
    required: readonly string[]
    /** Converts properties to arguments. */
    arguments(properties: JsonObject): JsonObject
    /** Converts a record to properties. */
    shown(record: JsonObject): JsonObject
  }
  /** Problems of properties beyond their schemas, without access to the database; paths begin with a property. */
  check?: (properties: JsonObject) => readonly Problem[]
  /** Finds a resource, if a plain read of the table is not sufficient. */
  find?: (db: Queryable, id: string) => Promise<Row | null>
  /** Returns the record of a row; default the kind's record. */
  present?: (row: Row) => JsonObject
  /**
   * When an export without a selection includes the type: with `content` for what users and agents store, never for `named`;
   * default always.
   */
  exportedWith?: 'content' | 'named'
  /** Whether an export includes a resource; default true. */
  exported?: (row: Row) => boolean
  /** Ids of resources that are created and deleted with this one; an export omits them. */
  owns?: (row: Row) => readonly (string | null)[]
  /** Write-only properties for which a resource has a value; default all. */
  hides?: (row: Row) => readonly string[]
  /** Returns the record in the response of `create` and `changing`; default the response. */
  made?: (answer: JsonObject) => JsonObject
  /** Adds defaults that depend on stored data to the properties of a create. */
  complete?: (services: Services, db: Queryable, projectId: string, properties: JsonObject) => Promise<JsonObject>
  /** Returns the call that changes properties, if it is not `update`. */
  changing?: (row: Row, changed: JsonObject) => FlatArguments
  /** Returns the call that deletes a resource, if it is not `delete`; null if the resource is retained. */
  deleting?: (row: Row) => FlatArguments | null
}

/** All resource types of the modules. */
export const resourceTypes = declarations<ResourceType>('resource type', ({ name }) => name)

/** Declares the resource type of a kind whose operations follow the conventions, with `overrides`. */
export function resourceType<Row extends KindRow>(
  kind: Kind<Row, any>,
  overrides: Partial<ResourceType<Row>> = {},
): ResourceType<Row> {
  const noun = toPascalCase(kind.name)
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
    required: [],
    fixed: [],
    replaced: [],
    moving: [],
    together: [],
    later: [],
    exhaustive: false,
    writeOnly: [],
    attributes: {},
    defaults: {},
    deleteWith: {},
    ...overrides,
  }
}
