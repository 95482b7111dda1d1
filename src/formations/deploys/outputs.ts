import { callAs } from '#core/api/call.ts'
import type { JsonObject } from '#core/api/flatten.ts'
import { type Operation, operations } from '#core/api/operation.ts'
import { AppError } from '#core/base/errors.ts'
import { ExactNumber } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import { invoke } from '#core/invoke/invoke.ts'
import { readResource } from '../plans/apply.ts'
import type { CompiledTemplate } from '../plans/compile.ts'
import type { FormationRow, ReadOutputs } from '../records/model.ts'
import { listFormationResources, type TrackedRow } from '../records/store.ts'
import {
  expressionOf,
  expressionsIn,
  resolveValue,
  substitutedNames,
  type TemplateScope,
} from '../template/expressions.ts'
import { itemArguments } from '../types/built-in.ts'
import { findType } from '../types/find.ts'
import type { OperationAttempt } from './operation-attempt.ts'

/** Outputs of formations. */

type Outputs = Record<string, string | { no_echo: true }>

const scalar = (value: unknown): string | null =>
  typeof value === 'string'
    ? value
    : typeof value === 'number' || typeof value === 'boolean' || value instanceof ExactNumber
      ? String(value)
      : null

/**
 * Returns the outputs of a template, in its order. An output whose value is not a scalar is omitted. `once`: values that are
 * returned only in the response of this operation. Records are read with the permissions of the caller.
 */
export async function resolveOutputs(
  attempt: OperationAttempt,
  compiled: CompiledTemplate,
  of: ReadonlyMap<string, TrackedRow>,
  scope: TemplateScope,
): Promise<{ outputs: Outputs; read: ReadOutputs; once: Record<string, string> }> {
  const records = new Map<string, JsonObject | null>()
  const outputs: Outputs = {}
  const reads: ReadOutputs = {}
  const once: Record<string, string> = {}
  const recordOf = async (logicalId: string, tracked: TrackedRow): Promise<JsonObject | null> => {
    const cached = records.get(logicalId)
    if (cached !== undefined) return cached
    const type = findType(attempt.services, tracked.resource_type)
    const id = tracked.physical_resource_id
    const record =
      !type || !id ? null : type.registered ? tracked.attributes : await readResource(attempt, type, id, tracked)
    records.set(logicalId, record)
    return record
  }
  for (const [name, value] of Object.entries(compiled.outputs)) {
    const expression = expressionOf(value)
    if (expression?.kind !== 'ref_attr') {
      if (usesHiddenParameter(value, compiled)) {
        outputs[name] = { no_echo: true }
        continue
      }
      const resolved = resolveValue(value, scope)
      const text = resolved.unknown || resolved.nothing ? null : resolved.value
      if (typeof text === 'string') outputs[name] = text
      continue
    }
    const [logicalId, attribute] = expression.text.split('.', 2)
    const tracked = of.get(logicalId)
    if (!tracked) continue
    const type = findType(attempt.services, tracked.resource_type)
    const from = type && !type.registered ? type.declared.attributes[attribute] : undefined
    if (from && 'once' in from) {
      outputs[name] = { no_echo: true }
      const text = scalar(attempt.once.get(`${logicalId}.${attribute}`))
      if (text !== null) once[name] = text
    } else if (from) {
      outputs[name] = { no_echo: true }
      reads[name] = { resource: tracked.id, attribute }
    } else {
      const text = scalar((await recordOf(logicalId, tracked))?.[attribute])
      if (text !== null) outputs[name] = text
    }
  }
  return { outputs, read: reads, once }
}

/** Replaces the value of a parameter with `no_echo`. */
export const HIDDEN = '***'

/** Whether a value contains a parameter with `no_echo`. */
const usesHiddenParameter = (value: unknown, { parameters }: CompiledTemplate): boolean =>
  expressionsIn(value).some(({ expression: { kind, text } }) =>
    (kind === 'param' ? [text] : kind === 'sub' ? substitutedNames(text) : []).some(
      name => parameters.get(name)?.no_echo,
    ),
  )

/** Returns the metadata of a template with expressions resolved; an expression without a value is null. */
export function resolveMetadata(compiled: CompiledTemplate, scope: TemplateScope): unknown {
  const { metadata } = compiled
  const walk = (value: unknown): unknown => {
    if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return value
    if (expressionOf(value)) {
      if (usesHiddenParameter(value, compiled)) return HIDDEN
      const { value: text, unknown, nothing } = resolveValue(value, scope)
      return unknown || nothing ? null : text
    }
    if (Array.isArray(value)) return value.map(walk)
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, walk(item)]))
  }
  return metadata === undefined ? null : walk(metadata)
}

/**
 * Returns the outputs of a formation for a caller. Values that are not stored are read by the operation that returns them, if
 * the caller may call it.
 */
export async function presentOutputs(
  services: Services,
  caller: Caller,
  { id, outputs, read_outputs }: FormationRow,
): Promise<Record<string, unknown> | null> {
  const reads = Object.entries(read_outputs ?? {})
  if (outputs === null || reads.length === 0) return outputs
  const resources = await listFormationResources(services.pool, id)
  const presented: Record<string, unknown> = { ...outputs }
  for (const [name, { resource, attribute }] of reads) {
    const tracked = resources.find(each => each.id === resource)
    const text = tracked ? await readAttribute(services, caller, tracked, attribute) : null
    if (text !== null) presented[name] = text
  }
  return presented
}

async function readAttribute(
  services: Services,
  caller: Caller,
  { resource_type, physical_resource_id }: { resource_type: string; physical_resource_id: string | null },
  attribute: string,
): Promise<string | null> {
  const type = findType(services, resource_type)
  if (!type || type.registered || physical_resource_id === null) return null
  const from = type.declared.attributes[attribute]
  if (!from || 'once' in from) return null
  const operation: Operation = operations.get(from.read)
  try {
    const params = itemArguments(type, operation, physical_resource_id, {}) as Record<string, string>
    const { body } = await invoke(services, operation, callAs(caller, 'formation', { params }))
    return scalar((body as JsonObject)[from.field])
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return null
    throw error
  }
}
