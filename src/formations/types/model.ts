import type { JsonObject } from '#core/api/flatten.ts'
import type { Kind, KindRow } from '#core/api/kind.ts'
import type { Operation } from '#core/api/operation.ts'
import type { ResourceType } from '#core/api/resource-type.ts'
import type { Problem } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'

/** Resource types of templates: built-in and registered. */

export type Property = { required: boolean; schema: JsonObject }

type Common = {
  name: string
  properties: ReadonlyMap<string, Property>
  fixed: ReadonlySet<string>
  replaced: ReadonlySet<string>
  writeOnly: readonly string[]
  /** Attributes for `ref_attr`; null if only the handler defines them. */
  attributes: ReadonlySet<string> | null
  /** A well-formed ID of the type, for validation. */
  exampleId: string
  /**
   * Validates properties. `complete`: whether required properties must be present. With `tenant`, the schemas of callers in
   * them are compiled too, in its turn.
   */
  check(
    services: Services,
    properties: JsonObject,
    options: { at: string; complete: boolean; tenant?: string },
  ): Promise<Problem[]>
}

export type BuiltInType = Common & {
  registered: null
  kind: Kind<any>
  declared: ResourceType
  operations: {
    create: Operation
    read: Operation
    update: Operation | null
    tags: Operation | null
    delete: Operation
  }
  /** Properties that only the update accepts: set by an update after the create. */
  later: ReadonlySet<string>
}

export type HandledType = Common & { registered: RegisteredType }

export type TemplateType = BuiltInType | HandledType

/** A type of FORMATION_RESOURCE_TYPES_CONFIG. */
export type RegisteredType = {
  name: string
  description?: string
  handler: { url: string; secret: string; timeoutMs: number }
  capabilities: readonly ('validate' | 'read')[]
  schema: JsonObject
  write_only_properties: readonly string[]
}

/** Current state of a resource. */
export type Live = {
  /** Null for a registered type. */
  row: KindRow | null
  /** Readable properties by name. */
  values: JsonObject
}
