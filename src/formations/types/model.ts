import type { Problem } from '../../core/api/errors.ts'
import type { JsonObject } from '../../core/api/flatten.ts'
import type { Kind, KindRow } from '../../core/api/kind.ts'
import type { Operation } from '../../core/api/operation.ts'
import type { ResourceType } from '../../core/api/resource-type.ts'
import type { Services } from '../../core/process/services.ts'

/** Types of resources as templates see them: those of the modules, and those that the operator registered. */

export type Property = { required: boolean; schema: JsonObject }

type Common = {
  name: string
  properties: ReadonlyMap<string, Property>
  fixed: ReadonlySet<string>
  replaced: ReadonlySet<string>
  writeOnly: readonly string[]
  /** What `ref_attr` reaches; null where only the handler knows. */
  attributes: ReadonlySet<string> | null
  /** An id of the form that resources of the type have. */
  exampleId: string
  /** What is wrong with properties; with `complete` what is required must be there. */
  check(services: Services, properties: JsonObject, options: { at: string; complete: boolean }): Promise<Problem[]>
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
  /** Properties that only a change takes: set by one behind the create. */
  later: ReadonlySet<string>
}

export type HandledType = Common & { registered: RegisteredType }

export type TemplateType = BuiltInType | HandledType

/** A type that the operator registered. */
export type RegisteredType = {
  name: string
  description?: string
  handler: { url: string; secret: string; timeoutMs: number }
  capabilities: readonly ('validate' | 'read')[]
  schema: JsonObject
  write_only_properties: readonly string[]
}

/** A resource as it is. */
export type Live = {
  /** Null for one of a registered type. */
  row: KindRow | null
  /** Properties by their names, as far as the resource shows them. */
  values: JsonObject
}
